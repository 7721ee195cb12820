"""What happens to one event, in reading order:

`model`            the values everything else talks about
`policy`           what to do with them: pure
`ports`            what is needed from the world
`fanout`           source topics → one queue per endpoint, in transactions
`intake`           which queues are ours; `tenure` and `mailbox` are what a loop gets of one
`loop`             one endpoint's loop: decides, obeys, reports
`settle`           the only code that completes an offset
`fallback_ledger`  what workers share about the present, and what one knows by itself while that is away
`adapters`         Kafka, Redis, HTTP, metrics
"""
