/*
 * A snapshot in the text format of Prometheus, version 0.0.4. docs/metrics.md
 * describes each metric.
 */
#pragma once
#include <stdio.h>

struct snapshot;

/* Write the metrics. If `snapshot` is NULL, there is no broker, and only
 * fsdpd_up is written. */
void prometheus_write(FILE *file, const struct snapshot *snapshot);
