"""What becomes of a policy's decisions: prompts, reminders, new courses, compactions, restarts, events.

The policy says what to do (`context.policy`), `carrying` does it or hands it to whoever can, in the order decided.
"""
