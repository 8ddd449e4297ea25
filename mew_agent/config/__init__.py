"""An agent's configuration and the policy it selects."""
