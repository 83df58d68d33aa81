#!/usr/bin/env python3
"""OpenAI's own Python client against a live daemon: openai_client_test.py ELASTICMEM MODEL CLIENT_FOLDER

Exits with 77 (skipped) where the model or the client is not there."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

PROGRAM, MODEL, CLIENT = sys.argv[1:4]
if not os.path.exists(MODEL) or not os.path.exists(os.path.join(CLIENT, "openai")):
    print("skipped: scripts/fetch_models.sh and scripts/fetch_clients.sh bring what this test needs")
    sys.exit(77)
sys.path.insert(0, CLIENT)
import openai  # noqa: E402

MESSAGES = [{"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the capital of France?"}]


def text_of(stream):
    """The text of a chat's stream, its finish reason and its usage."""
    text, reason, usage, roles = "", None, None, []
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.role:
                roles.append(choice.delta.role)
            assert reason is None, "nothing follows the finish reason"
            text += choice.delta.content or ""
            reason = choice.finish_reason
    assert roles == ["assistant"], roles
    return text, reason, usage


def expect_error(kind, call, param=None, **fields):
    try:
        call(**fields)
    except kind as error:
        assert param is None or error.param == param, (error.param, param)
        return error
    raise AssertionError(f"{fields} was not refused")


def check(client, name):
    root = str(client.base_url).removesuffix("/v1/")
    chat, complete = client.chat.completions.create, client.completions.create
    assert [model.id for model in client.models.list()] == [name]
    greedy = {"model": name, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}

    answer = chat(**greedy)
    text = answer.choices[0].message.content
    assert "Paris" in text, text
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    again = chat(**greedy)
    assert again.choices[0].message.content == text, "a prefix that is cached changes nothing"
    assert again.usage.prompt_tokens_details.cached_tokens > 0

    streamed, reason, usage = text_of(chat(**greedy, stream=True, stream_options={"include_usage": True}))
    assert streamed == text and reason == answer.choices[0].finish_reason
    assert usage.completion_tokens == answer.usage.completion_tokens
    assert text_of(chat(**greedy, stream=True))[2] is None, "usage is told only where it was asked for"

    capped = chat(model=name, messages=MESSAGES, temperature=0, max_completion_tokens=3)
    assert capped.choices[0].finish_reason == "length" and capped.usage.completion_tokens == 3
    cut = chat(**greedy, stop=["Paris"])
    assert cut.choices[0].message.content == text[:text.index("Paris")] and cut.choices[0].finish_reason == "stop"
    assert text_of(chat(**greedy, stop="Paris", stream=True))[:2] == (text[:text.index("Paris")], "stop")

    drawn = {"model": name, "messages": MESSAGES, "max_tokens": 12, "seed": 11, "temperature": 1.0}
    three = chat(**drawn, n=3).choices
    assert [choice.index for choice in three] == [0, 1, 2] and len({c.message.content for c in three}) > 1
    assert chat(**drawn).choices[0].message.content == three[0].message.content

    logprobs = chat(**greedy, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(logprobs) == answer.usage.completion_tokens
    assert all(entry.logprob == entry.top_logprobs[0].logprob <= 0 for entry in logprobs)
    assert bytes(sum((entry.bytes for entry in logprobs), [])).decode() == text
    banned = client.post(root + "/tokenize", body={"content": text.split()[0]}, cast_to=object)["tokens"][0]
    assert chat(**greedy, logit_bias={str(banned): -100}).choices[0].message.content != text

    plain = {"model": name, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
    whole = complete(**plain).choices[0].text
    assert "".join(chunk.choices[0].text for chunk in complete(**plain, stream=True)) == whole
    assert complete(**plain, echo=True).choices[0].text == plain["prompt"] + whole
    assert complete(**plain, extra_body={"top_k": 1, "min_p": 0.1, "ignore_eos": True}).usage.completion_tokens == 8
    assert len(complete(**plain, logprobs=2).choices[0].logprobs.tokens) == 8

    bad = openai.BadRequestError
    expect_error(bad, chat, "temperature", **{**greedy, "temperature": -1})
    expect_error(bad, chat, "messages[0].role", model=name, messages=[{"role": "wizard", "content": "x"}])
    expect_error(bad, chat, "messages", model=name, messages=[])
    expect_error(bad, complete, "prompt", model=name, prompt="")
    too_long = expect_error(bad, complete, "prompt", model=name, prompt=[5] * 3000)
    assert too_long.code == "context_length_exceeded" and too_long.body["n_prompt_tokens"] == 3000
    wrong_key = client.with_options(api_key="wrong")
    expect_error(openai.AuthenticationError, lambda: wrong_key.models.list())

    stream = chat(**{**greedy, "max_tokens": 500}, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()  # a client that goes away does not disturb the next one
    assert chat(**greedy).choices[0].message.content == text


def main():
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / "keys"
        digest = subprocess.run(["sha256sum"], input=b"a key", capture_output=True, check=True).stdout.split()[0].decode()
        keys.write_text(f"tester {digest}\n")
        daemon = subprocess.Popen([PROGRAM, "serve", "-m", MODEL, "--memory", "400MB", "--context", "2048", "--clients", "4",
                                   "--listen", "127.0.0.1:0", "--alias", "smol", "--keys", str(keys)],
                                  stderr=subprocess.PIPE, text=True)
        try:
            url = None
            for line in daemon.stderr:
                if found := re.search(r"listening on (http://\S+);", line):
                    url = found.group(1)
                    break
            assert url, "the daemon did not start"
            check(openai.OpenAI(base_url=url + "/v1", api_key="a key", max_retries=0), "smol")
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
        finally:
            daemon.kill()


main()
