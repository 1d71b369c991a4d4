"""The official Python SDK, unmodified, on a sandbox with our execd. Exits with 0 if all of it works."""
import asyncio, json, os, urllib.request
from datetime import timedelta

import websockets
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import (ContentReplaceEntry, DirectoryListEntry, MoveEntry, SearchEntry, SetPermissionEntry,
                                           WriteEntry)

os.environ["OPENSANDBOX_DISABLE_METRICS"] = "1"


async def main():
    url = os.environ["CRABBOX_OPENSANDBOX_API_URL"]
    config = ConnectionConfig(domain=url.removeprefix("http://"), protocol="http", api_key=os.environ["CRABBOX_OPENSANDBOX_API_KEY"])
    sandbox = await Sandbox.create(os.environ["CRABBOX_OPENSANDBOX_IMAGE"], connection_config=config, timeout=timedelta(minutes=5))
    try:
        await commands(sandbox)
        await background(sandbox)
        await sessions(sandbox)
        await files(sandbox)
        await terminal(sandbox)
        metrics = await sandbox.get_metrics()
        assert metrics.cpu_count > 0 and metrics.memory_total_in_mib > 0, metrics
        info = await sandbox.get_info()
        assert info.status.state == "Running", info
    finally:
        await sandbox.kill()
        await sandbox.close()


def text(logs):
    return "".join(line.text for line in logs)


async def commands(sandbox):
    done = await sandbox.commands.run("echo hello; echo world >&2; exit 3")
    assert text(done.logs.stdout) == "hello" and text(done.logs.stderr) == "world", done
    assert done.exit_code == 3, done
    done = await sandbox.commands.run("pwd; printenv X", opts=RunCommandOpts(working_directory="/tmp", envs={"X": "y"}))
    assert [line.text for line in done.logs.stdout] == ["/tmp", "y"] and done.exit_code == 0, done


async def background(sandbox):
    started = await sandbox.commands.run("echo one; sleep 1; echo two", opts=RunCommandOpts(background=True))
    for _ in range(100):
        status = await sandbox.commands.get_command_status(started.id)
        if not status.running:
            break
        await asyncio.sleep(0.1)
    assert status.exit_code == 0, status
    logs = await sandbox.commands.get_background_command_logs(started.id)
    assert logs.content == "one\ntwo\n", logs
    long = await sandbox.commands.run("sleep 100", opts=RunCommandOpts(background=True))
    await sandbox.commands.interrupt(long.id)
    for _ in range(100):
        status = await sandbox.commands.get_command_status(long.id)
        if not status.running:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("interrupt did not end it")


async def sessions(sandbox):
    session = await sandbox.commands.create_session()
    await sandbox.commands.run_in_session(session, "cd /tmp; export KEPT=yes")
    done = await sandbox.commands.run_in_session(session, "pwd; echo $KEPT")
    assert [line.text for line in done.logs.stdout] == ["/tmp", "yes"], done
    await sandbox.commands.delete_session(session)


async def files(sandbox):
    await sandbox.files.write_files([WriteEntry(path="/tmp/sdk/a.txt", data="content é\n", mode=644)])
    assert await sandbox.files.read_file("/tmp/sdk/a.txt") == "content é\n"
    info = await sandbox.files.get_file_info(["/tmp/sdk/a.txt"])
    assert info["/tmp/sdk/a.txt"].size == len("content é\n".encode()), info
    await sandbox.files.write_files([WriteEntry(path="/tmp/sdk/lines", data="one\ntwo\nthree\n", mode=644)])
    assert await sandbox.files.read_file("/tmp/sdk/lines", offset=2, limit=1) == "two\n"
    await sandbox.files.create_directories([WriteEntry(path="/tmp/sdk/dir/deep", mode=750)])
    await sandbox.files.move_files([MoveEntry(src="/tmp/sdk/a.txt", dest="/tmp/sdk/dir/deep/b.txt")])
    await sandbox.files.set_permissions([SetPermissionEntry(path="/tmp/sdk/dir/deep/b.txt", mode=600)])
    found = await sandbox.files.search(SearchEntry(path="/tmp/sdk", pattern="*.txt"))
    assert [(one.path, one.mode) for one in found] == [("/tmp/sdk/dir/deep/b.txt", 600)], found
    replaced = await sandbox.files.replace_contents_detailed(
        [ContentReplaceEntry(path="/tmp/sdk/dir/deep/b.txt", old_content="content", new_content="changed")])
    assert [one.replaced_count for one in replaced] == [1], replaced
    assert await sandbox.files.read_file("/tmp/sdk/dir/deep/b.txt") == "changed é\n"
    listed = await sandbox.files.list_directory(DirectoryListEntry(path="/tmp/sdk", depth=2))
    assert sorted(one.path for one in listed) == ["/tmp/sdk/dir", "/tmp/sdk/dir/deep", "/tmp/sdk/lines"], listed
    info = (await sandbox.files.get_file_info(["/tmp/sdk/dir/deep"]))["/tmp/sdk/dir/deep"]
    assert (info.entry_type, info.mode) == ("directory", 750), info
    await sandbox.files.delete_files(["/tmp/sdk/lines"])
    await sandbox.files.delete_directories(["/tmp/sdk"])
    done = await sandbox.commands.run("ls -d /tmp/sdk")
    assert done.exit_code != 0, done


async def terminal(sandbox):
    """The SDK has no terminals of its own: the endpoint is its, and the WebSocket a library's."""
    endpoint = await sandbox.get_endpoint(44772)
    headers = dict(endpoint.headers or {})
    data = json.dumps({"cwd": "/tmp", "command": "read line; stty size; echo got=$line; exit 6"}).encode()
    request = urllib.request.Request(f"http://{endpoint.endpoint}/pty", data, headers={**headers, "content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201, answer.status
        session = json.loads(answer.read())["session_id"]
    said = b""
    async with websockets.connect(f"ws://{endpoint.endpoint}/pty/{session}/ws?pty=1", additional_headers=headers, proxy=None) as socket:
        assert json.loads(await socket.recv())["type"] == "connected"
        await socket.send(json.dumps({"type": "resize", "cols": 91, "rows": 33}))
        await socket.send(b"\x00typed\r")
        async for frame in socket:
            if isinstance(frame, bytes):
                said += frame[1:]
                continue
            notice = json.loads(frame)
            if notice["type"] == "exit":
                assert notice["exit_code"] == 6, notice
                break
    assert b"33 91" in said and b"got=typed" in said, said
    request = urllib.request.Request(f"http://{endpoint.endpoint}/pty/{session}", headers=headers, method="DELETE")
    urllib.request.urlopen(request, timeout=30).close()


asyncio.run(main())
print("sdk: ok")
