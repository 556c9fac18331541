"""Put/signal programs as JSON files for engines over stock NCCL and RCCL (docs/put-signal.md)."""
