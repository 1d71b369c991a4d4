"""A host that is allowed and one that is not, with every library that there is."""
import importlib.util, ssl, urllib.error, urllib.request


def urllib_get(url):
    context = ssl.create_default_context(cafile="all.pem")
    try:
        return urllib.request.urlopen(url, context=context, timeout=30).read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code


def requests_get(url):
    import requests
    answer = requests.get(url, verify="all.pem", timeout=30)
    return answer.text.strip() if answer.ok else answer.status_code


def httpx_get(url):
    import httpx
    answer = httpx.get(url, verify="all.pem", timeout=30)
    return answer.text.strip() if answer.status_code == 200 else answer.status_code


for library, get in ("urllib", urllib_get), ("requests", requests_get), ("httpx", httpx_get):
    if not importlib.util.find_spec(library):
        print(library, "missing")
        continue
    for host in "origin.test", "other.test":
        for scheme in "http", "https":
            try:
                said = get("%s://%s/hello" % (scheme, host))
            except Exception as error:
                said = "unreachable"
            print(library, scheme, said)
