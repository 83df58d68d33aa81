"""Renders every *.jinja of a folder on several conversations with jinja2 and writes FOLDER/expectations.json.

    make_template_expectations.py FOLDER
    cmake -DELASTICMEM_TEMPLATES_DIR=FOLDER ...      # chat_template_test then compares ours with it
"""
import json
import pathlib
import sys

import jinja_reference

NOW = 1720000000
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Tells the weather <now> & \"then\"",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Name of a city"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "array", "items": {"type": "integer"}}}},
        "return": {"type": "string"}}},
    {"type": "function", "function": {
        "name": "add", "description": "Adds.",
        "parameters": {"type": "object", "required": ["a", "b"],
                       "properties": {"a": {"type": "number"}, "b": {"type": ["number", "null"]}}}}},
]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def tool_conversation(arguments, content):
    call = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return [say("system", "Use tools."), say("user", "Weather?"), say("assistant", content, tool_calls=[call]),
            say("tool", '{"temp": 21}', tool_call_id="call12345", name="get_weather"),
            say("assistant", "It is 21."), say("user", "Thanks")]


ODD_TEXT = "h\u00e9llo \u2713 <b>&'\"\\ \u2028 \u65e5\u672c\u8a9e \U0001F600"
CONVERSATIONS = {
    "one turn": {"messages": [say("user", "Hello, who are you?")], "add_generation_prompt": True},
    "system and turns": {"add_generation_prompt": True, "messages": [
        say("system", "  You are terse.\n"), say("user", "Hi"),
        say("assistant", "<think>\nhmm\n</think>\n\nHello!"), say("user", "And 2+2?")]},
    "odd text": {"add_generation_prompt": True, "enable_thinking": False, "messages": [
        say("user", ODD_TEXT), say("assistant", "</think>ok<think>"), say("user", "  \t\n<|im_end|>\u00a0x ")]},
    "parts and nothing": {"add_generation_prompt": False, "messages": [
        say("user", [{"type": "text", "text": ODD_TEXT}, {"type": "text", "text": ""}]), say("assistant", ""),
        say("user", "x"), say("assistant", None, reasoning_content="r"), say("user", "")]},
    "tools": {"tools": TOOLS, "add_generation_prompt": True,
              "messages": tool_conversation({"city": "Z\u00fcrich", "days": [1, 2], "unit": None, "f": 1.5, "ok": True}, "")},
    "tools as text": {"tools": TOOLS, "add_generation_prompt": True,
                      "messages": tool_conversation(json.dumps({"city": "Z\u00fcrich"}), None)},
}


def main():
    folder = pathlib.Path(sys.argv[1])
    conversations = {name: {**TOKENS, **context} for name, context in CONVERSATIONS.items()}
    expected = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode("utf-8")
        expected[path.name] = {name: jinja_reference.render(source, c, NOW) for name, c in conversations.items()}
    out = {"now": NOW, "conversations": conversations, "templates": expected}
    (folder / "expectations.json").write_text(json.dumps(out, ensure_ascii=False, indent=1))
    print(len(expected), "templates")


if __name__ == "__main__":
    main()
