"""What several gateways of one space share: an order of events, small state, leases and frames.

`interface` is the contract. `memory` connects gateways within one process; `jetstream` connects them over NATS. Both
pass the same tests. Nothing here knows what an event, a state or a frame means.
"""
