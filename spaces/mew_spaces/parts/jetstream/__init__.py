"""The storage that several gateways of one space share: an order of events, small state, leases and frames.

`backplane` is the contract, and `jetstream` implements it over NATS. Does not interpret events, state or frames.
"""
