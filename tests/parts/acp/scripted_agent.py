"""An ACP agent for tests: a program without a model that says what its prompts ask for.

Each prompt contains words that choose what it does; the environment variable AGENT_STYLE chooses whose
habits it has. It shares no code with the package: it speaks the protocol by hand, as any agent does.
"""

import json
import os
import sys
import threading
import time

STYLE = os.environ.get("AGENT_STYLE", "plain")
SESSION = "s-1"
write_lock = threading.Lock()
answers: dict[int, dict[str, dict[str, str]]] = {}
declared: dict[str, object] = {}
answered = threading.Condition()
cancelled = threading.Event()
opened = "no"
servers: list[str] = []
next_compaction = ""
mode = "auto"
used = 1000
size = 20_000


def write(message: dict[str, object]) -> None:
    with write_lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def update(kind: str, **values: object) -> None:
    write({"method": "session/update", "params": {"sessionId": SESSION, "update": {"sessionUpdate": kind, **values}}})


def say(text: str, message: str = "m") -> None:
    update("agent_message_chunk", content={"type": "text", "text": text}, messageId=message)


def usage(tokens: int) -> None:
    if STYLE == "qwen":  # no update for it, but an empty piece of text with the usage of the call
        counts = {"inputTokens": tokens, "outputTokens": 5, "totalTokens": tokens + 5}
        update("agent_message_chunk", content={"type": "text", "text": ""}, _meta={"usage": counts})
    else:
        update("usage_update", used=tokens, size=size * 95 // 100 if STYLE == "codex" else size)


def modes() -> dict[str, object]:
    """The modes of a session, as `session/new` and `session/load` name them."""
    offered = {"stranger-modes": ["auto", "quick"], "codex": ["auto", "read-only"], "claude": ["auto", "default"]}
    if STYLE == "opencode":
        values = [{"value": "build", "name": "build"}, {"value": "plan", "name": "plan"}]
        option = {"id": "m", "name": "Mode", "category": "mode", "type": "select", "currentValue": "build"}
        return {"configOptions": [{**option, "options": values}]}
    if STYLE not in offered:
        return {}
    available = [{"id": one, "name": one} for one in offered[STYLE]]
    return {"modes": {"currentModeId": "auto", "availableModes": available}}


def list_commands() -> None:
    name = "compress" if STYLE == "qwen" else "compact"
    update("available_commands_update", availableCommands=[{"name": name, "description": "Compact"}])


def ask_permission(number: int) -> str:
    write(
        {
            "id": number,
            "method": "session/request_permission",
            "params": {
                "sessionId": SESSION,
                "toolCall": {
                    "toolCallId": "c1",
                    "title": "rm -r build",
                    **({"rawInput": {"path": "build"}} if STYLE != "late" else {}),
                    "content": [
                        {"type": "content", "content": {"type": "text", "text": "Deletes 3 files"}},
                        {"type": "diff", "path": "/a.txt", "oldText": "a", "newText": ""},
                    ],
                },
                "options": [
                    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
                    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
                ],
            },
        }
    )
    with answered:
        answered.wait_for(lambda: number in answers)
    outcome = answers[number]["outcome"]
    return outcome.get("optionId") or outcome["outcome"]


def request(number: int, method: str, params: dict[str, object]) -> str:
    """Make a request of the client's and return its result or error as JSON."""
    write({"id": number, "method": method, "params": {"sessionId": SESSION, **params}})
    with answered:
        answered.wait_for(lambda: number in answers)
    return json.dumps(answers[number])


def prompt(number: int, text: str) -> None:  # noqa: C901 - one line for each word
    global mode, next_compaction, size, used
    reason = "end_turn"
    if text.startswith("/") and (STYLE == "deaf" or next_compaction == "hangs"):
        threading.Event().wait()
    elif text.startswith("/") and next_compaction == "dies":
        os._exit(3)
    elif text.startswith("/"):
        time.sleep(0.02)
        if STYLE == "codex":
            update("compaction_update", compactionId="x", status="in_progress")
        for wrong in (used, used + 100, 68):
            usage(wrong)
        used = used + 1500 if "AGENT_KEEPS" in os.environ else 400
        if STYLE == "codex":
            update("compaction_update", compactionId="x", status="completed")
            update("compaction_update", compactionId="x", status="completed")
        say("Compacted.")
    else:
        used += 500
        update("agent_thought_chunk", content={"type": "text", "text": "Let me think."})
        if "tool" in text:
            update("tool_call", toolCallId="t1", title="list files", status="pending", rawInput={})
            update("tool_call_update", toolCallId="t1", title="list files", status="in_progress", rawInput={"p": "."})
            update("tool_call_update", toolCallId="t1", status="completed")
        if "plan" in text:
            entries = [{"content": "look", "status": "completed"}, {"content": "mend", "status": "in_progress"}]
            update("plan", entries=entries)
        if "noise" in text:
            with write_lock:
                sys.stdout.write("this is no JSON\n[1, 2]\n\n")
            update("something_new", value=1)
            sys.stderr.write("x" * 200_000 + "\n")
        if "larger model" in text:
            size = 40_000
        if "expired" in text:
            write({"id": number, "error": {"code": -32000, "message": "Authentication required"}})
            return
        if "write " in text:  # the lines after it, whatever they are
            with write_lock:
                written = text.partition("write ")[2].replace("NUMBER", str(number)).replace("NEWLINE", "\n")
                sys.stdout.write(written + "\n")
                sys.stdout.flush()
            if "NUMBER" in text:
                return
        if "permission" in text:
            say(f"You said {ask_permission(1000 + number)}.")
        elif "fs/" in text or "terminal/" in text:
            method, rest = text.partition(": ")[2].split(" ", 1)
            say(request(2000 + number, method, {"path": rest, "content": "new", "command": rest}))
        elif "declared" in text:
            say(json.dumps(declared))
        elif "crash" in text:
            sys.stderr.write("out of ideas\n")
            sys.stderr.flush()
            os._exit(3)
        elif "babble" in text or "flood" in text:
            sys.stdout.write("hello world\n" * 101 if "babble" in text else "x" * (33 << 20) + "\n")
            sys.stdout.flush()
            threading.Event().wait()
        elif "messages" in text:
            for one in range(int(text.split()[-1])):
                say(f"Message {one}.", f"m-{one}")
                if "tools" in text:
                    update("tool_call", toolCallId=f"t-{one}", title="look", status="completed")
        elif "which mode" in text:
            say(f"mode {mode}, environment {os.environ.get('OPENCODE_PERMISSION', '')}")
        elif "change your mode" in text:
            mode = text.split()[-1]
            update("current_mode_update", currentModeId=mode)
            say("Changed.")
        elif "session" in text:
            say(f"{opened} session: {text}")
        elif "servers" in text:
            say(f"servers: {servers}")
        elif "next compaction" in text:
            next_compaction = text.split()[-1]
            say("It will.")
        elif "hang" in text:
            threading.Event().wait()
        elif "slowly" in text:
            say("I begin.")
            time.sleep(0.05)
            say("Done.")
        elif "wait" in text:
            say("I wait.")
            reason = "cancelled" if cancelled.wait(60) else "end_turn"
        elif "compact yourself" in text:
            for compaction in range(3 if "again and again" in text else 1):
                update("compaction_update", compactionId=f"y{compaction}", status="in_progress")
                if "and die" in text:
                    cancelled.wait(60)
                    os._exit(3)
                usage(70)
                update("compaction_update", compactionId=f"y{compaction}", status="completed")
                if "after work" in text:
                    usage(200)
                if "again and again" in text:
                    usage(17_000)
            used = 300
            say("Done.")
        else:
            say(f"You wrote: {text}")
        if STYLE != "late":
            usage(123 if "tool" in text else used)  # a subagent's figure comes first
            usage(used)
    write({"id": number, "result": {"stopReason": reason}})
    if "afterwards" in text:
        usage(777)
    if STYLE == "late" and not text.startswith("/"):  # as Kimi: no update after a compaction
        time.sleep(0.05)
        usage(used)


def main() -> None:  # noqa: C901 - one branch for each method
    global mode, opened, used
    if STYLE == "broken":
        sys.exit("cannot start: no key")
    while STYLE == "babbling":
        sys.stdout.write("hello world\n")
    for line in sys.stdin:
        message = json.loads(line)
        method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method is None:
            with answered:
                answers[number] = message.get("result", message.get("error"))
                answered.notify_all()
        elif method == "initialize":
            declared.update(params["clientCapabilities"])
            if STYLE == "silent":
                continue
            if STYLE == "no-input":  # what the client writes next fails, and the exit comes later
                os.close(0)
            info = {"name": {"late": "kimi"}.get(STYLE, STYLE), "version": "1"}
            terminal = {"command": "/bin/agent", "args": ["log in"]}
            methods = [
                {"id": "key", "name": "API key", "description": "Get a key."},
                {"id": "here", "name": "Here", "type": "terminal", "args": ["--login"]},
                {"id": "there", "name": "There", "_meta": {"terminal-auth": terminal}},
            ]
            write(
                {
                    "id": number,
                    "result": {
                        "protocolVersion": 1,
                        "agentInfo": info,
                        "agentCapabilities": {"loadSession": True, "mcpCapabilities": {"http": True}},
                        "authMethods": methods,
                    },
                }
            )
            if STYLE == "no-input":
                time.sleep(0.3)
                sys.exit("lost its input")
        elif method == "session/new":
            servers[:] = [one["name"] for one in params["mcpServers"]]
            if STYLE == "signed-out":
                write({"id": number, "error": {"code": -32000, "message": "Authentication required"}})
                continue
            used, opened = 1000, "new"
            model = {"modelId": "m", "_meta": {"contextLimit": size}}
            models = {"models": {"currentModelId": "m", "availableModels": [model]}} if STYLE == "qwen" else {}
            mode = "auto"
            write({"id": number, "result": {"sessionId": SESSION, **models, **modes()}})
            if STYLE != "late":
                usage(0)  # before any call
            list_commands()
        elif method == "session/load":
            opened = "loaded"
            say("an old answer")
            update("compaction_update", compactionId="x", status="in_progress")
            update("compaction_update", compactionId="x", status="completed")
            usage(9_999)
            list_commands()
            mode = "auto"
            write({"id": number, "result": modes()})
        elif method == "session/set_mode":
            if "AGENT_REFUSES" in os.environ:
                write({"id": number, "error": {"code": -32602, "message": "the mode stays"}})
                continue
            mode = params["modeId"]
            write({"id": number, "result": {}})
        elif method == "session/set_config_option":
            mode = params["value"]
            write({"id": number, "result": {"configOptions": []}})
        elif method == "session/prompt":
            cancelled.clear()
            threading.Thread(target=prompt, args=(number, params["prompt"][0]["text"]), daemon=True).start()
        elif method == "session/cancel":
            cancelled.set()
        elif number is not None:
            write({"id": number, "error": {"code": -32601, "message": "no such method"}})


main()
