"""The dashboard for whoever is on call: is it up, is it full, does it fail, is the canary worse."""

from deploy.dashboards.panel import Board, Kind, Panel, Query, Section, Source, Step
from deploy.dashboards.promql import gauge, highest, quantile, rate, ratio, selector
from deploy.dashboards.tracks import TRACKS

__all__ = ["BOARD"]

_NONE_IS_GOOD = (Step(color="green"), Step(color="red", at=1))
_ANSWERS = "http_requests_total"
_GENERATION = 'route="generation"'
_FAULTS = 'outcome!="published"'
_OUTCOMES = {"published": "green", "stale": "yellow", "aborted": "orange", "replayed": "red"}


_GLANCE = Section(
    title="At a glance",
    panels=(
        Panel(
            title="Replicas up",
            description="Replicas that answer the scrape. Fewer than there should be: see "
            "ServerDown's runbook; the process's log says why it ended.",
            unit="none",
            queries=(Query(expr=f"sum({selector('up', prefix='')})", legend="up"),),
            kind=Kind.STAT,
            width=4,
            height=5,
            steps=(Step(color="red"), Step(color="green", at=1)),
        ),
        Panel(
            title="Alerts firing",
            description="All of Fencepost's alerts that fire now. Open Prometheus' alert page: "
            "each has a runbook in its annotations.",
            unit="none",
            queries=(
                Query(
                    expr='count(ALERTS{alertstate="firing",job=~"$job"}) or vector(0)',
                    legend="firing",
                ),
            ),
            kind=Kind.STAT,
            width=4,
            height=5,
            steps=_NONE_IS_GOOD,
            quiet="no alert fires on a healthy server",
            source=Source.RULES,
        ),
        Panel(
            title="Requests running",
            description="Requests that take part in rounds, at most --max-requests a replica. At "
            "the limit with a queue: add replicas.",
            unit="none",
            queries=(Query(expr=gauge("requests_running"), legend="running"),),
            kind=Kind.STAT,
            width=4,
            height=5,
        ),
        Panel(
            title="Requests waiting",
            description="Requests in the queue. A queue that does not empty costs the time to the "
            "first token of everybody behind it: shed load or add replicas.",
            unit="none",
            queries=(Query(expr=gauge("requests_waiting"), legend="waiting"),),
            kind=Kind.STAT,
            width=4,
            height=5,
            steps=(Step(color="green"), Step(color="orange", at=1), Step(color="red", at=32)),
            quiet="nobody waits while there is room",
        ),
        Panel(
            title="K/V in use",
            description="The fullest replica's share of target K/V blocks in use. Near 1 requests "
            "wait or are preempted: raise --kv-memory, lower --max-model-len, or add replicas.",
            unit="percentunit",
            queries=(Query(expr=highest("kv_cache_usage_ratio"), legend="fullest"),),
            kind=Kind.STAT,
            width=4,
            height=5,
            top=1.0,
            steps=(Step(color="green"), Step(color="orange", at=0.8), Step(color="red", at=0.95)),
        ),
        Panel(
            title="Failed answers",
            description="Share of answers to completions and chats of class 5xx but for 503, which "
            "is load: see 'Refused requests'. 500 is a defect or a broken device, see the log of "
            "that replica.",
            unit="percentunit",
            queries=(
                Query(
                    expr=ratio(
                        rate(_ANSWERS, where=f'{_GENERATION},status="5xx"'),
                        rate(_ANSWERS, where=_GENERATION),
                    ),
                    legend="5xx",
                ),
            ),
            kind=Kind.STAT,
            width=4,
            height=5,
            steps=(Step(color="green"), Step(color="orange", at=0.01), Step(color="red", at=0.05)),
            quiet="a healthy server answers no 5xx",
        ),
    ),
)

_REFUSED = Panel(
    title="Refused requests",
    description="Share of completions and chats answered 503: the queue is full, or the replica "
    "loads or stops. They count in no goodput: it may look fine while half of the calls are "
    "refused. Add replicas, or raise --max-waiting.",
    unit="percentunit",
    queries=(
        Query(
            expr=ratio(
                rate(_ANSWERS, "instance", f'{_GENERATION},status="503"'),
                rate(_ANSWERS, "instance", _GENERATION),
            ),
            legend="{{instance}}",
        ),
    ),
    width=24,
    quiet="nothing is refused while there is room",
)

_QUEUE = Section(
    title="Queue",
    panels=(
        Panel(
            title="Running and waiting by replica",
            description="One replica with a queue beside idle ones: the balancer does not spread "
            "by load. All of them: too little capacity.",
            unit="short",
            queries=(
                Query(expr=gauge("requests_running", "instance"), legend="{{instance}} running"),
                Query(expr=gauge("requests_waiting", "instance"), legend="{{instance}} waiting"),
            ),
        ),
        Panel(
            title="Time in the queue",
            description="Arrival to admission. It is part of the time to the first token. Above "
            "the wish for that: no setting of drafts will help, only capacity.",
            unit="s",
            queries=tuple(
                Query(expr=quantile(q, "queue_seconds"), legend=f"p{round(100 * q)}")
                for q in (0.5, 0.95, 0.99)
            ),
        ),
        Panel(
            title="Requests ended",
            description="By outcome: stop and length are answers, abort is a client that left, "
            "error is ours. Many aborts: answers come too late for clients' timeouts.",
            unit="reqps",
            queries=(Query(expr=rate("requests_total", "outcome"), legend="{{outcome}}"),),
            kind=Kind.STACK,
            colors={"stop": "green", "length": "blue", "abort": "orange", "error": "red"},
        ),
        _REFUSED,
    ),
)

_MEMORY = Section(
    title="K/V and memory",
    panels=(
        Panel(
            title="K/V blocks in use by replica",
            description="Share of target blocks in use. A level that stays up without requests is "
            "a leak: it is a defect, keep the log and restart the replica.",
            unit="percentunit",
            queries=(
                Query(expr=highest("kv_cache_usage_ratio", "instance"), legend="{{instance}}"),
            ),
            top=1.0,
            steps=(Step(color="transparent"), Step(color="red", at=0.95)),
        ),
        Panel(
            title="K/V blocks by pool and state",
            description="Blocks of the target's and the draft's pool. The draft's pool full before "
            "the target's: requests go without drafts, see reason 'memory' on goodput.",
            unit="short",
            queries=(Query(expr=gauge("kv_blocks", "pool, state"), legend="{{pool}} {{state}}"),),
            kind=Kind.STACK,
        ),
        Panel(
            title="Preemptions",
            description="Requests a second that gave their blocks back and will be computed again. "
            "Lasting ones waste the prefill: fewer --max-requests, or more --kv-memory.",
            unit="ops",
            queries=(Query(expr=rate("preemptions_total", "instance"), legend="{{instance}}"),),
            quiet="nothing is preempted while blocks are free",
        ),
        Panel(
            title="Branch and committed K/V",
            description="Bytes a second of K/V rows computed for drafts, beside those that became "
            "history. Branch far above committed: drafts are too long for their acceptance.",
            unit="Bps",
            queries=(
                Query(expr=rate("kv_temporary_bytes_total"), legend="branch"),
                Query(expr=rate("kv_committed_bytes_total"), legend="committed"),
            ),
        ),
        Panel(
            title="Probability rows",
            description="Bytes of p and q rows of the last round. It grows with requests, K and "
            "vocabulary. If it nears the free device memory, lower --k-max or --max-requests.",
            unit="bytes",
            queries=(Query(expr=gauge("row_buffer_bytes", "instance"), legend="{{instance}}"),),
        ),
        Panel(
            title="Memory",
            description="Of the process on the host, and held on the device. Growth over days at "
            "the same load is a leak: restart, and keep the figures.",
            unit="bytes",
            queries=(
                Query(
                    expr=gauge("process_resident_memory_bytes", "instance", prefix=""),
                    legend="{{instance}} process",
                ),
                Query(expr=gauge("device_memory_bytes", "instance"), legend="{{instance}} device"),
            ),
        ),
    ),
)

_ERRORS = Section(
    title="Errors and the fence",
    panels=(
        Panel(
            title="HTTP answers",
            description="By class, probes included; 499 is a client that left before its answer, "
            "503 a full queue or a replica that loads. 4xx in bulk: a client sends what is "
            "refused, its answer names the field.",
            unit="reqps",
            queries=(Query(expr=rate(_ANSWERS, "status"), legend="{{status}}"),),
            kind=Kind.STACK,
            colors={
                "2xx": "green",
                "4xx": "yellow",
                "499": "orange",
                "503": "purple",
                "5xx": "red",
            },
        ),
        Panel(
            title="Commits",
            description="Ends of a request's rounds, published ones included: the scale for what "
            "stands beside it.",
            unit="ops",
            queries=(Query(expr=rate("commit_total", "outcome"), legend="{{outcome}}"),),
            colors=_OUTCOMES,
        ),
        Panel(
            title="Commits that were not published",
            description="Stale: the request was cancelled or moved on during its round; about one "
            "a cancel is normal. Aborted: a round broke, see the log. Replayed: a round came "
            "twice, which is a defect. The fence kept all of them from the output.",
            unit="ops",
            queries=(Query(expr=rate("commit_total", "outcome", _FAULTS), legend="{{outcome}}"),),
            colors=_OUTCOMES,
            quiet="without cancels and faults every round is published",
        ),
        Panel(
            title="Drafts verified in vain",
            description="Draft tokens a second whose round ended stale. It follows cancels; with "
            "none, see the commits that were not published.",
            unit="short",
            queries=(Query(expr=rate("draft_stale_total", "instance"), legend="{{instance}}"),),
            quiet="without cancels no round is stale",
        ),
        Panel(
            title="Residual fallbacks",
            description="Draws from the target's row because the residual had no mass left in "
            "floating point. Rare ones are harmless; a steady rate means that draft and target "
            "agree almost to the bit, or that one of them is broken.",
            unit="ops",
            queries=(
                Query(expr=rate("residual_fallbacks_total", "instance"), legend="{{instance}}"),
            ),
            quiet="a residual without mass is a rounding accident",
        ),
        Panel(
            title="Acceptance log",
            description="Records a second by what became of them; all zero without "
            "--acceptance-log. Dropped: the disk is too slow. Failed: it is full or gone.",
            unit="ops",
            queries=(
                Query(expr=rate("acceptance_log_records_total", "outcome"), legend="{{outcome}}"),
                Query(expr=rate("acceptance_log_failures_total"), legend="disk faults"),
            ),
            quiet="the log is off by default",
        ),
    ),
)

_PROCESS = Section(
    title="Process",
    panels=(
        Panel(
            title="Event loop lag",
            description="How late timers fire. It delays every stream of the replica. p99 over "
            "0.1 s: too little CPU beside the model's threads; lower --threads or move neighbours.",
            unit="s",
            queries=(
                *(
                    Query(
                        expr=quantile(q, "event_loop_lag_seconds", "instance"),
                        legend=f"{{{{instance}}}} p{round(100 * q)}",
                    )
                    for q in (0.5, 0.99)
                ),
            ),
            steps=(Step(color="transparent"), Step(color="red", at=0.1)),
        ),
        Panel(
            title="CPU",
            description="Cores in use by the process. At the cores of the machine on a CPU server "
            "is full use; on a GPU server one core is the event loop, more is something else.",
            unit="none",
            queries=(
                Query(
                    expr=rate("process_cpu_seconds_total", "instance", prefix=""),
                    legend="{{instance}}",
                ),
            ),
        ),
        Panel(
            title="Open files",
            description="Sockets and files of the process. Growth without requests is a leak of "
            "connections: look at the proxy's keep-alive, then restart.",
            unit="short",
            queries=(
                Query(expr=gauge("process_open_fds", "instance", prefix=""), legend="{{instance}}"),
            ),
        ),
        Panel(
            title="Rounds",
            description="Rounds a second. Half of them with the same load means that each takes "
            "twice as long: see 'Time a committed token' on goodput.",
            unit="ops",
            queries=(Query(expr=rate("rounds_total", "instance"), legend="{{instance}}"),),
        ),
        Panel(
            title="Host-device synchronisations a round",
            description="One is the design. More means that a round waits for the device in its "
            "middle: a defect, or a proposer that needs the host.",
            unit="none",
            queries=(
                Query(
                    expr=ratio(
                        rate("host_syncs_total", "instance"), rate("rounds_total", "instance")
                    ),
                    legend="{{instance}}",
                ),
            ),
        ),
        Panel(
            title="Prompt tokens",
            description="Prompt rows computed by the target, and prompt tokens of requests that "
            "ended. The first far above the second: preempted requests are computed again.",
            unit="short",
            queries=(
                Query(expr=rate("tokens_prefilled_total"), legend="computed"),
                Query(expr=rate("prompt_tokens_total"), legend="of ended requests"),
            ),
        ),
    ),
)

BOARD = Board(
    uid="fencepost-operations",
    title="Fencepost / Operations",
    description="Is it up, is it full, does it fail, and is the canary worse than stable.",
    sections=(_GLANCE, _QUEUE, _MEMORY, _ERRORS, _PROCESS, TRACKS),
)
