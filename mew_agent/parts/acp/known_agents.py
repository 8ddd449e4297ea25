"""[pure] The known ACP agents, measured with the versions in docs/reference/acp-agents.md."""

from types import MappingProxyType

from mew_agent.parts.acp.profiles import AcpProfile

CLAUDE = AcpProfile(
    "claude",
    ("claude-agent-acp",),
    "total",
    asking_modes=("default",),  # in `plan`, a model decides about commands
    sign_in="run `claude` and type /login, or set ANTHROPIC_API_KEY in `env`",
    install="npm install --global @agentclientprotocol/claude-agent-acp",
)

CODEX = AcpProfile(
    "codex",
    ("codex-acp",),
    "total",
    window_percent=95,
    asking_modes=("read-only",),
    sign_in="run `codex login`, or set OPENAI_API_KEY in `env`",
    install="npm install --global @agentclientprotocol/codex-acp",
)

GOOSE = AcpProfile(
    "goose",
    ("goose", "acp"),
    "total",
    asking_modes=("approve", "chat"),
    other_commands=("goose-binary-linux-x64",),
    install="npm install --global @aaif/goose-binary-linux-x64",
)

KIMI = AcpProfile(
    "kimi",
    ("kimi", "acp"),
    "total",
    asking_modes=("default", "plan"),
    compaction_texts={
        "Context compaction started": "started",
        "Compacting conversation context": "started",
        "Compaction completed.": "completed",
        "Compaction cancelled.": "failed",
        "Compaction is blocked by": "failed",
    },
    usage_is_late=True,
    install="npm install --global @moonshot-ai/kimi-code",
)

OPENCODE = AcpProfile(
    "opencode",
    ("opencode", "acp"),
    "prompt",
    hidden_command="compact",
    compacts_unreported=True,
    asking_environment=MappingProxyType({"OPENCODE_PERMISSION": '{"bash": "ask", "edit": "ask"}'}),
    install="npm install --global opencode-ai",
)

QWEN = AcpProfile(
    "qwen",
    ("qwen", "--acp"),
    "prompt",
    asking_modes=("default", "plan"),
    install="npm install --global @qwen-code/qwen-code",
)
