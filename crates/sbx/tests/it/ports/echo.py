# Echoes on 127.0.0.1 (TCP and UDP) and ::1 (TCP), each on the port of argv[1]; says `ready` when it listens.
import asyncio, socket, sys

PORT = int(sys.argv[1])


async def echo(reader, writer):
    try:
        # The answer to a question that has ended, byte by byte backwards; or each line as it comes.
        first = await reader.readline()
        if first == b"whole\n":
            question = await reader.read()
            writer.write(question[::-1])
        while first and first != b"whole\n":
            writer.write(first)
            first = await reader.readline()
        await writer.drain()
        writer.close()
    except ConnectionError:
        pass


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


async def main():
    loop = asyncio.get_running_loop()
    servers = [await asyncio.start_server(echo, "127.0.0.1", PORT, backlog=4096)]
    await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", PORT))
    if socket.has_ipv6:
        servers.append(await asyncio.start_server(echo, "::1", PORT))
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


asyncio.run(main())
