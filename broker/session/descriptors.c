#include "broker/session/descriptors.h"
#include "broker/base/config.h"
#include "broker/base/fdstore.h"
#include "broker/base/log.h"
#include "broker/catalog/catalog.h"
#include <errno.h>
#include <string.h>
#include <sys/resource.h>

/* A session has a connection, a pidfd, a ref-counter file and a doorbell. */
#define SESSION_DESCRIPTORS 4
/* A file that survives a restart has two, and the broker itself has some. */
#define OTHER_DESCRIPTORS (2 * FDSTORE_MAX + 64)

void descriptors_raise(struct rlimit *ret_first)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	*ret_first = limit;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		log_line(LOG_LEVEL_WARNING,
			 "cannot raise the limit of descriptors: %s",
			 strerror(errno));
}

static uint64_t wanted(const struct config *config)
{
	uint64_t n = config->quota_sessions;

	if (n > CATALOG_MAX_SESSIONS)
		n = CATALOG_MAX_SESSIONS;
	return n * SESSION_DESCRIPTORS + OTHER_DESCRIPTORS;
}

void descriptors_check(const struct config *config)
{
	uint64_t n = wanted(config);
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= n)
		return;
	log_note(LOG_LEVEL_WARNING,
		 "the limit of descriptors is %llu, but quota_sessions "
		 "(%llu) needs %llu, %d for each session: raise LimitNOFILE "
		 "(or ulimit -Hn), or lower quota_sessions",
		 (unsigned long long)limit.rlim_cur,
		 (unsigned long long)config->quota_sessions,
		 (unsigned long long)n, SESSION_DESCRIPTORS);
}
