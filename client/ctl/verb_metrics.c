/* metrics: prints metrics of the broker in Prometheus' text format. */
#include "client/ctl/broker.h"
#include "client/ctl/verb.h"
#include "client/monitor/prometheus.h"
#include "client/monitor/snapshot.h"

static int run_metrics(struct fsdp_client *client, const struct args *args,
		       struct error *err)
{
	struct snapshot snapshot;
	int r = snapshot_read(client, &snapshot);

	(void)args;
	if (r < 0)
		r = broker_walk_failed(err, r);
	else
		prometheus_write(stdout, &snapshot);
	snapshot_deinit(&snapshot);
	return r;
}

const struct verb verbs_metrics[] = {
	{.name = "metrics",
	 .operands = "",
	 .summary = "print metrics in the text format of Prometheus",
	 .run = run_metrics},
	{0}};
