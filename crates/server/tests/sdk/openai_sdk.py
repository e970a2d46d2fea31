"""OpenAI's own Python SDK against the real program with a real model.

    python3 openai_sdk.py STRATA MODEL [ROUNDS]      (at least 2)

Chat and plain completions, streamed and not, from one client and from eight at once; wrong requests, full queues, clients
that leave while they wait, while the prompt is read and while the answer is written. Usage must be the same in every form,
the server idle at the end of each round, and its memory no larger after the last round than after the first ones.
"""

import asyncio
import concurrent.futures
import http.client
import json
import signal
import socket
import subprocess
import sys
import time

import openai

PARALLEL = 4
QUEUE = 8
CONTEXT = 1024
# In these rounds the allocator and the pools of threads reach their size.
WARM_UP_ROUNDS = 10
# Memory that may come and go without being a leak: with each round 20 requests are answered and 12 are left, and losing the
# state of only one of these, of which a token takes 23 KB, would exceed it by far over all rounds.
GROWTH_BYTES_MAX = 4 << 20

QUESTION = [{"role": "user", "content": "Name three rivers in Europe."}]
GREEDY = {"temperature": 0, "max_tokens": 12}


class Server:
    def __init__(self, strata, model):
        command = [strata, "serve", "-m", model, "--port", "0", "--parallel", str(PARALLEL), "--queue", str(QUEUE)]
        # What is kept of conversations on purpose would look like a leak.
        command += ["--ctx", str(CONTEXT), "--prefix-cache", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line
        self.address = line.split("http://")[1].strip()
        self.client = openai.OpenAI(base_url=f"http://{self.address}/v1", api_key="none", max_retries=0, timeout=120)

    def health(self):
        connection = http.client.HTTPConnection(self.address, timeout=10)
        connection.request("GET", "/health")
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def wait_until(self, queued, running):
        """Until the counts are these: there is nothing else to wait for that a client could see."""
        for _ in range(2000):
            status, health = self.health()
            if (status, health["queued"], health["running"]) == (200, queued, running):
                return
            time.sleep(0.01)
        raise AssertionError(f"the server does not come to {queued} queued, {running} running: {health}")

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            kilobytes = next(line for line in status if line.startswith("VmRSS:")).split()[1]
        return int(kilobytes) * 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.process.returncode


def chat(client, **more):
    answer = client.chat.completions.create(model="any", messages=QUESTION, **GREEDY | more)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    return choice.message.content, choice.finish_reason, counts(answer.usage)


def chat_streamed(client, **more):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    pieces = list(client.chat.completions.create(model="any", messages=QUESTION, **GREEDY | options | more))
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-1].choices == [] and all(piece.usage is None for piece in pieces[:-1])
    choices = [piece.choices[0] for piece in pieces[:-1]]
    text = "".join(choice.delta.content or "" for choice in choices)
    assert all(choice.finish_reason is None for choice in choices[:-1])
    return text, choices[-1].finish_reason, counts(pieces[-1].usage)


def completion(client, prompt="The capital of France is"):
    answer = client.completions.create(model="any", prompt=prompt, **GREEDY)
    return answer.choices[0].text, answer.choices[0].finish_reason, counts(answer.usage)


def completion_streamed(client):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    pieces = list(client.completions.create(model="any", prompt="The capital of France is", **GREEDY | options))
    text = "".join(piece.choices[0].text for piece in pieces[:-1])
    return text, pieces[-2].choices[0].finish_reason, counts(pieces[-1].usage)


def counts(usage):
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return usage.prompt_tokens, usage.completion_tokens


def answers(server):
    client = server.client
    whole = chat(client)
    assert whole[1] == "length" and whole[2][1] == 12 and whole[0].strip(), whole
    assert chat_streamed(client) == whole
    # Without a limit of its own the model ends the answer.
    ended = chat(client, max_tokens=None)
    assert ended[1] == "stop" and chat_streamed(client, max_tokens=None) == ended
    # What a stop string cuts off was written nevertheless.
    word = whole[0].split()[3]
    cut = chat(client, stop=[word])
    assert (cut[0], cut[1]) == (whole[0][: whole[0].index(word)], "stop"), cut
    assert chat_streamed(client, stop=[word]) == cut
    nothing = chat(client, max_tokens=0)
    assert nothing == ("", "length", (whole[2][0], 0)), nothing
    seeded = [chat(client, temperature=1.0, seed=7) for _ in range(2)]
    assert seeded[0] == seeded[1]
    raw = completion(client)
    assert "Paris" in raw[0] and completion_streamed(client) == raw
    models = client.models.list().data
    assert len(models) == 1 and models[0].context_length == CONTEXT
    assert client.models.retrieve(models[0].id).id == models[0].id
    print(f"answers: {whole[0]!r}, {whole[2]} tokens; {raw[0]!r}")
    return whole, raw


def refusals(server):
    client = server.client
    ask = client.chat.completions.create

    def refused(kind, param, code, make):
        try:
            make()
        except kind as error:
            assert (error.param, error.code) == (param, code), error
            return error
        raise AssertionError(f"{param} was taken")

    bad = openai.BadRequestError
    for field, wrong in [("temperature", -1), ("top_p", 2), ("max_tokens", -1), ("seed", 2**64), ("n", 0), ("stop", [""])]:
        refused(bad, field, None, lambda: ask(model="any", messages=QUESTION, **{field: wrong}))
    refused(bad, "messages", None, lambda: ask(model="any", messages=[]))
    refused(bad, "logit_bias", None, lambda: ask(model="any", messages=QUESTION, logit_bias={"4000000000": 1}))
    refused(bad, "prompt", None, lambda: client.completions.create(model="any", prompt=[2**31]))
    refused(bad, "prompt", None, lambda: client.completions.create(model="any", prompt=""))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    refused(bad, "tools", "unsupported_value", lambda: ask(model="any", messages=QUESTION, tools=tools))
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a.example/b.png"}}]}]
    refused(bad, "messages[0].content[0]", "unsupported_value", lambda: ask(model="any", messages=image))
    refused(openai.NotFoundError, None, "unknown_url", lambda: client.models.retrieve("other"))
    # One token less than the context leaves room for one; neither a prompt nor an answer that was asked for is ever cut.
    fits = client.completions.create(model="any", prompt=[1] * (CONTEXT - 1), temperature=0)
    assert (fits.choices[0].finish_reason, counts(fits.usage)) == ("length", (CONTEXT - 1, 1)), fits
    error = refused(bad, None, "context_length_exceeded", lambda: completion(client, prompt=[1] * (CONTEXT - 1)))
    assert str(CONTEXT - 1) in error.message and str(CONTEXT) in error.message, error
    make = lambda: client.completions.create(model="any", prompt=[1] * CONTEXT)
    error = refused(bad, None, "context_length_exceeded", make)
    assert str(CONTEXT) in error.message, error
    print("refusals: as they should be")


def at_once(server, whole, raw):
    """Eight at once get what one gets alone."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit([chat, chat_streamed, completion, completion_streamed][i % 4], server.client) for i in range(8)]
        for i, job in enumerate(jobs):
            assert job.result() == (whole if i % 4 < 2 else raw), (i, job.result())


async def at_once_async(server, whole):
    async with openai.AsyncOpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0) as client:

        async def one(streamed):
            request = client.chat.completions.create(model="any", messages=QUESTION, stream=streamed, **GREEDY)
            if not streamed:
                return (await request).choices[0].message.content
            return "".join([piece.choices[0].delta.content or "" async for piece in await request])

        texts = await asyncio.gather(*[one(i % 2 == 0) for i in range(8)])
        assert texts == [whole[0]] * 8, texts


def leave(server):
    """Clients of each kind leave in each phase, and take their work with them."""
    endless = {"model": "any", "messages": QUESTION, "logit_bias": {"2": -100, "0": -100}}
    connections = []
    for i in range(PARALLEL + 4):
        body = json.dumps(endless | {"stream": i % 2 == 0})
        connection = socket.create_connection(server.address.split(":"))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {server.address}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        connections.append(connection)
    # The first of them write by now, or read, the others wait.
    server.wait_until(4, PARALLEL)
    # Some of those that wait first, so that their places in the queue are seen to be given back.
    for connection in connections[PARALLEL:]:
        connection.close()
    server.wait_until(0, PARALLEL)
    for connection in connections[:PARALLEL]:
        connection.close()
    server.wait_until(0, 0)
    # The SDK's own ways: a stream that is closed after its first piece, and a time-out.
    for _ in range(2):
        request = endless | {"stream": True}
        with server.client.chat.completions.create(**request) as stream:
            next(iter(stream))
        try:
            server.client.with_options(timeout=0.2).chat.completions.create(**endless)
            raise AssertionError("an endless answer ended")
        except openai.APITimeoutError:
            pass
    server.wait_until(0, 0)


def overload(server):
    """One more than all places: it is told to come back."""
    body = json.dumps({"model": "any", "messages": QUESTION, "logit_bias": {"2": -100, "0": -100}})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {server.address}\r\nContent-Length: {len(body)}\r\n\r\n"
    connections = []
    for _ in range(PARALLEL + QUEUE):
        connection = socket.create_connection(server.address.split(":"))
        connection.sendall((head + body).encode())
        connections.append(connection)
        if len(connections) == PARALLEL:
            server.wait_until(0, PARALLEL)
    server.wait_until(QUEUE, PARALLEL)
    try:
        chat(server.client)
        raise AssertionError("there was room")
    except openai.RateLimitError as error:
        assert error.code == "queue_full" and int(error.response.headers["retry-after"]) > 0, error
    for connection in connections:
        connection.close()
    server.wait_until(0, 0)
    print("overload: told to come back")


def main():
    strata, model = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 50
    warm_up = min(WARM_UP_ROUNDS, rounds // 2)
    server = Server(strata, model)
    try:
        whole, raw = answers(server)
        refusals(server)
        overload(server)
        resident = []
        for _ in range(rounds):
            at_once(server, whole, raw)
            asyncio.run(at_once_async(server, whole))
            leave(server)
            assert chat(server.client) == whole
            server.wait_until(0, 0)
            resident.append(server.resident_bytes())
        early, late = max(resident[:warm_up]), max(resident[warm_up:])
        mebibytes = [round(bytes / (1 << 20), 1) for bytes in resident[:: max(1, rounds // 10)]]
        print(f"{rounds} rounds: resident MiB {mebibytes}, {(late - early) / 1024:.0f} KiB more after the first")
        assert late - early <= GROWTH_BYTES_MAX, resident
        server.stop()
    finally:
        server.process.kill()


if __name__ == "__main__":
    main()
