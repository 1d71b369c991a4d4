# Look for what only the host has: by path, and through every door that /proc has to another root.
paths = PATHS.split("\n")
doors = ["", "/proc/1/root", "/proc/1/cwd", "/proc/self/root", "/proc/thread-self/root", "/proc/%d/root" % os.getppid()]
doors += ["/proc/1/fd/%d" % n for n in range(64)] + ["/proc/1/map_files"]
climb = "/.." * 12
found = 0
for path in paths:
    for door in doors:
        for way in (door + path, door + climb + path if door else path):
            try:
                data = read(way)
            except OSError:
                continue
            if SECRET.encode() in data:
                print("BREACH read", way)
                found += 1
for directory in DIRECTORIES.split("\n"):
    for door in doors:
        try:
            names = os.listdir(door + directory)
        except OSError:
            continue
        if MARKER in names:
            print("BREACH list", door + directory)
            found += 1
print("found", found)
print("tried", len(paths) * len(doors))
