"""The storage that several gateways of one space share: an order of events, small state, leases and frames.

`backplane` is the contract, and `jetstream` keeps it over NATS. Nothing here knows what an event, a state or a frame
means.
"""
