# Change what looks like the host's system. It may work: then only the own layer may have changed.
for path in PATHS.split("\n"):
    try:
        with open(path, "ab") as file:
            file.write(MARK.encode())
        print("appended", path)
    except OSError as error:
        print("refused", path, name_of(error))
for directory in DIRECTORIES.split("\n"):
    try:
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, MARK), "w") as file:
            file.write("made inside")
        print("made", directory)
    except OSError as error:
        print("refused", directory, name_of(error))
