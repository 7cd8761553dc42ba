#!/usr/bin/python3
"""A small service with a queue: workers answer requests in turn, each with the same time of CPU, and each after an answer of
the service behind it, where there is one.

    service.py ADDRESS PORT METRICS_PORT WORKERS MS [ADDRESS_BEHIND PORT_BEHIND]

Response times, from the acceptance of a connection to its answer, are in the histogram http_request_duration_seconds of
its exposition; requests that are not answered yet are in the gauge http_requests_in_flight. Needs python3-prometheus-client.
"""
import queue
import socket
import sys
import threading
import time

from prometheus_client import Gauge, Histogram, start_http_server

DURATION = Histogram("http_request_duration_seconds", "Time from acceptance to answer", ["path"])
IN_FLIGHT = Gauge("http_requests_in_flight", "Requests that are not answered yet")


def ask(address, path):
    with socket.create_connection(address, timeout=20) as behind:
        behind.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        while behind.recv(4096):
            pass


def work(requests, seconds, behind):
    while True:
        connection, accepted = requests.get()
        try:
            with connection:
                path = connection.recv(4096).split(b" ")[1].decode()
                until = time.thread_time() + seconds
                while time.thread_time() < until:
                    sum(range(1000))
                if behind:
                    ask(behind, path)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n")
            DURATION.labels(path).observe(time.monotonic() - accepted)
        except (OSError, IndexError):
            pass
        finally:
            IN_FLIGHT.dec()


def main():
    address = sys.argv[1]
    port, metrics_port, workers, ms = (int(argument) for argument in sys.argv[2:6])
    behind = (sys.argv[6], int(sys.argv[7])) if len(sys.argv) > 6 else None
    requests = queue.Queue()
    for _ in range(workers):
        threading.Thread(target=work, args=(requests, ms / 1000, behind), daemon=True).start()
    listener = socket.create_server((address, port), backlog=512)
    start_http_server(metrics_port, address)
    while True:
        connection, _ = listener.accept()
        IN_FLIGHT.inc()
        requests.put((connection, time.monotonic()))


main()
