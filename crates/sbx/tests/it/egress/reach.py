"""Says for each target of its arguments which status a request for it got, and where it went, or what went wrong."""
import http.client, json, os, re, sys

PROXY = re.match(r"http://([^:/]+):(\d+)", os.environ.get("http_proxy", ""))
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        if PROXY:
            conn = http.client.HTTPConnection(PROXY[1], int(PROXY[2]), timeout=20)
            conn.request("GET", "http://%s/echo" % target, headers={"Host": target})
        else:
            conn = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=20)
            conn.request("GET", "/echo", headers={"Host": target})
        answer = conn.getresponse()
        body = answer.read()
        print(answer.status, json.loads(body)["at"] if answer.status == 200 else body.split(b"\n")[0].decode())
    except OSError as error:
        print(type(error).__name__, error)
