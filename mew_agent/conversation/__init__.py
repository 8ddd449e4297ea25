"""An agent's conversation with its model: the context, the calls, and the actions of the policy.

Three objects:

- `ContextState` holds the history, its accounts, reminders and stored session, and is their only writer. - `ModelCalls`
makes the calls, one at a time, and holds the lock: the history changes only between two calls. - `Conversation` runs
turns and controls, asks the policy, and carries out its decisions between two calls.

A turn: `begin_turn`; `call` adds the question (`ContextState.add_user_message`), asks the policy before the request,
sends everything in context (`ModelCalls.main`), adds the reply with its reported usage (`ContextState.add_reply`), asks
the policy again and emits `StatusChanged`, which the agent sends. Tool results pass `check_results` and enter through
`ContextState.close_open_calls`; the next `call` follows. `end_turn`; `apply_pending` compacts or clears if the policy
decided so.
"""
