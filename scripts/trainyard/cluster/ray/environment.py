"""The variables with which Ray and its workers start."""

from typing import Final

ENVIRONMENT: Final[dict[str, str | None]] = {  # None: must not be set
    "RAY_ADDRESS": None,
    "RAY_TMPDIR": None,
    "RAY_AUTH_TOKEN": None,
    "RAY_AUTH_MODE": "token",  # without a token anyone who reaches the port runs code as this user
    "RAY_USAGE_STATS_ENABLED": "0",
    # It watches the memory of the whole machine and kills the newest worker. Slurm enforces the limit of the job.
    "RAY_memory_monitor_refresh_ms": "0",
    # Otherwise the driver waits for `cpus` idle workers when it connects, and hangs if one of them fails to start.
    "RAY_prestart_worker_first_driver": "0",
    # Listen on loopback only, which `_node_ip_address="127.0.0.1"` does not achieve.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Failed health checks, which take seconds each: the end of the raylet is seen at once, and one that was suspended
    # has not failed.
    "RAY_health_check_failure_threshold": str(10**9),
    # Otherwise Ray kills the guards of users' programs, whose parents have ended.
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "0",
    # While Ray starts, its handler of SIGTERM would wait for the raylet to end by itself.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # The default, 15, makes trials give way to everything else that computes on the node.
    "RAY_worker_niceness": "0",
    # Records of each call, for a dashboard and for logs that nobody reads.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    # The raylet connects to its own object store, whose thread may not listen yet: try each 10 ms, not each second.
    "RAY_raylet_client_connect_timeout_milliseconds": "10",
    "RAY_raylet_client_num_connect_attempts": "1000",  # for 10 s, as by default
    # The future default of Ray, which warns on stderr when it is unset.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
