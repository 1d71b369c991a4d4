use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::commands::wait_for;
use crate::daemon::{Answer, Daemon};

fn upload(daemon: &Daemon, path: &str, content: &[u8], metadata_name: &str) -> Answer {
    let metadata = json!({"path": path, "owner": null, "group": null, "mode": 640});
    let mut body = format!(
        "--b\r\ncontent-disposition: form-data; name=\"metadata\"{metadata_name}\r\n\r\n{metadata}\r\n--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
    )
    .into_bytes();
    body.extend_from_slice(content);
    body.extend_from_slice(b"\r\n--b--\r\n");
    let headers = "content-type: multipart/form-data; boundary=b\r\n";
    daemon.request("POST", "/files/upload", headers, &body)
}

#[test]
fn upload_and_download_are_byte_exact() {
    let daemon = Daemon::start();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let path = daemon.path("deep/er/file");
    let answer = upload(&daemon, &path, &content, "; filename=\"metadata\"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let target = format!("/files/download?path={path}");
    assert!(daemon.get(&target).body == content);
    let part = daemon.request("GET", &target, "range: bytes=4-7\r\n", b"");
    assert_eq!(
        (part.status, part.body),
        (206, 1_u32.to_le_bytes().to_vec())
    );
    let beyond = daemon.request("GET", &target, "range: bytes=99999999-\r\n", b"");
    assert_eq!(beyond.status, 416);
    let info = &daemon.get(&format!("/files/info?path={path}")).json()[&path];
    assert_eq!(info["mode"], 640);
    assert_eq!(info["size"], 12_000_000);
    assert_eq!(info["type"], "file");
}

#[test]
fn an_upload_changes_permissions_of_regular_files_only() {
    let daemon = Daemon::start();
    let path = daemon.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode();
    let before = mode();
    let reader = std::thread::spawn({
        let path = path.clone();
        move || std::fs::read(path).unwrap()
    });
    let answer = upload(&daemon, &path, b"content", "; filename=\"metadata\"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(reader.join().unwrap(), b"content");
    assert_eq!(mode(), before);
    // What it replaces is a file like a new one.
    let file = daemon.path("file");
    std::fs::write(&file, "before").unwrap();
    upload(&daemon, &file, b"after", "; filename=\"metadata\"");
    assert_eq!(std::fs::read(&file).unwrap(), b"after");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
}

#[test]
fn uploads_without_metadata_are_refused() {
    let daemon = Daemon::start();
    let answer = upload(&daemon, &daemon.path("f"), b"x", "");
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["code"], "INVALID_FILE_METADATA");
    assert!(!std::path::Path::new(&daemon.path("f")).exists());
}

#[test]
fn files_and_directories() {
    let daemon = Daemon::start();
    let directory = daemon.path("d/e");
    let made = daemon.post("/directories", &json!({directory.clone(): {"mode": 750}}));
    assert_eq!(made.status, 200, "{}", made.text());
    let (one, two) = (
        format!("{directory}/one.txt"),
        format!("{directory}/two.txt"),
    );
    std::fs::write(&one, "old old").unwrap();
    let replaced = daemon.post(
        "/files/replace?verbose=true",
        &json!({one.clone(): {"old": "old", "new": "n"}}),
    );
    assert_eq!(replaced.json()[&one]["replacedCount"], 2);
    assert_eq!(std::fs::read_to_string(&one).unwrap(), "n n");
    assert_eq!(
        daemon
            .post("/files/mv", &json!([{"src": one, "dest": two}]))
            .status,
        200
    );
    let changed = daemon.post("/files/permissions", &json!({two.clone(): {"mode": 600}}));
    assert_eq!(changed.status, 200);
    let listed = daemon
        .get(&format!(
            "/directories/list?path={}&depth=2",
            daemon.path("d")
        ))
        .json();
    let paths: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|info| info["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, [directory.as_str(), two.as_str()]);
    let found = daemon
        .get(&format!(
            "/files/search?path={}&pattern=*.txt",
            daemon.path("d")
        ))
        .json();
    assert_eq!(found[0]["path"], two);
    assert_eq!(found[0]["mode"], 600);
    assert_eq!(
        daemon
            .request("DELETE", &format!("/files?path={two}"), "", b"")
            .status,
        200
    );
    assert_eq!(
        daemon
            .request("DELETE", &format!("/files?path={two}"), "", b"")
            .status,
        404
    );
    let gone = daemon.request(
        "DELETE",
        &format!("/directories?path={}", daemon.path("d")),
        "",
        b"",
    );
    assert_eq!(gone.status, 200);
    assert!(!std::path::Path::new(&directory).exists());
    assert_eq!(daemon.get("/files/info").status, 400);
}

#[test]
fn a_file_that_is_being_uploaded_is_the_owners_alone() {
    let daemon = Daemon::start();
    let path = daemon.path("secret");
    let metadata = json!({"path": path, "mode": 644});
    let body = format!(
        "--b\r\ncontent-disposition: form-data; name=\"metadata\"; filename=\"m\"\r\n\r\n{metadata}\r\n--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nfirst half\r\n--b--\r\n"
    );
    let (sent, rest) = body.split_at(body.find(" half").unwrap());
    let mut stream = daemon.connect();
    let headers = format!(
        "POST /files/upload HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: {}\r\n\r\n{sent}",
        body.len()
    );
    stream.write_all(headers.as_bytes()).unwrap();
    wait_for(|| std::path::Path::new(&path).exists());
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    stream.write_all(rest.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(mode(), 0o644);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "first half");
}
