"""The public gRPC API, `protocol/kvferry_v1.proto`: the second door. What requests mean is in `router/front`."""
