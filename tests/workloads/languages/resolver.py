"""For each line on its input: looks up localhost five times."""
import socket
import sys

print("ready", flush=True)
for line in sys.stdin:
    for _ in range(5):
        socket.getaddrinfo("localhost", 80)
    print("done", flush=True)
sys.exit(7)
