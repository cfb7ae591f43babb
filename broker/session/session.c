/*
 * How a session begins, and its two watchers (of pidfd and doorbell).
 *
 * The doorbell is shared with the client, which may reset its count or make it
 * blocking at any time, so it is read with RWF_NOWAIT only.
 */
#include "broker/session/session.h"
#include "broker/base/account.h"
#include "broker/base/deadline.h"
#include "broker/base/process.h"
#include "broker/session/death.h"
#include "broker/session/peer.h"
#include "broker/session/recorded_reply.h"
#include "broker/session/sessions.h"
#include "broker/tensor/channel_resize.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/timeline_file.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDINFO_SIZE 1024
/* The delay before the first attempt to watch a process that could not be
 * watched, and the limit up to which it doubles. */
#define FIRST_LOOK_MS 1000
#define LAST_LOOK_MS  64000
/* The number of descriptors that stay free when processes of adopted sessions
 * are watched. */
#define SPARE_DESCRIPTORS 64
#define ROUND_NS          250000 /* the time limit of an idle round */
/* The number of slots that a round updates after a reconnect. */
#define GRANTS_PER_ROUND 1024

_Static_assert(CONFIG_MAX_SESSIONS == CATALOG_MAX_SESSIONS - 1, "records");

struct session *session_at(const struct sessions *sessions, uint32_t index)
{
	return session_of(sessions->store->holdings[index]);
}

/* --- watchers ------------------------------------------------------------ */

static void on_quarantine_over(void *data, uint32_t index)
{
	(void)index;
	session_end(data, 0);
}

/*
 * Keep the session of a dead process for a while, if it may have memory of a
 * device. An MPS server runs the kernels of its clients, and kernels may
 * outlive their client. Until they must have ended, the session stays as it is:
 * the tensors that it wrote may still become complete, and its memory is not
 * reused. Returns false if the session can be ended at once.
 */
static bool quarantine(struct session *session)
{
	struct sessions *sessions = session->sessions;
	struct deadline deadline = {
		.at_ms = now_ms() + sessions->base->config.device_quarantine_ms,
		.fn = on_quarantine_over,
		.data = session,
		.position = &session->quarantine_position,
	};

	if (!session->has_device_memory ||
	    sessions->base->config.device_quarantine_ms == 0)
		return false;
	return deadlines_add(&sessions->base->deadlines, &deadline, NULL) == 0;
}

void session_end_dead(struct session *session)
{
	session->is_dead = true;
	if (!quarantine(session))
		session_end(session, 0);
}

/* Handle the exit of the session's process. */
static void note_death(struct session *session)
{
	/* The pidfd stays readable, so it is not watched any longer. */
	if (uv_handle_get_type((uv_handle_t *)&session->pidfd_poll) == UV_POLL)
		uv_poll_stop(&session->pidfd_poll);
	/* The reply to a goodbye would have no reader any more. */
	if (session->peer)
		peer_close(session->peer);
	if (session->is_ending || session->is_dead)
		return;
	death_note(session);
	session_end_dead(session);
}

static void on_pidfd(uv_poll_t *poll, int status, int events)
{
	struct session *session = poll->data;
	struct meter *meter = &session->sessions->base->loop.meter;

	(void)events;
	if (session->is_stopping || status < 0)
		return;
	meter_begin(meter);
	note_death(session);
	(void)meter_end(meter, METER_CLOSES);
}

static void defer_draining(struct session *session)
{
	session->is_draining = true;
	loop_defer(&session->sessions->base->loop,
		   &session->sessions->draining);
}

void session_collect(struct session *session)
{
	session->is_draining =
		collect_pending(session->sessions->store, &session->holdings);
	catalog_commit(&session->sessions->store->catalog);
	if (session->is_draining)
		defer_draining(session);
}

static void on_doorbell(uv_poll_t *poll, int status, int events)
{
	struct session *session = poll->data;
	struct meter *meter = &session->sessions->base->loop.meter;
	uint64_t count;
	struct iovec iov = {&count, sizeof(count)};

	(void)events;
	if (session->is_stopping || status < 0)
		return;
	meter_begin(meter);
	if (preadv2(session->doorbell_fd, &iov, 1, -1, RWF_NOWAIT) !=
	    (ssize_t)sizeof(count))
		return;
	failpoint("session.rung");
	channels_retire(session->sessions->store);
	if (session_may_work(session->sessions))
		session_collect(session);
	else
		defer_draining(session);
	(void)meter_end(meter, METER_CLOSES);
}

/*
 * Update the states of the slots of some grants, which counted as held while
 * the ref-counter file was missing. The update of a slot may drop other grants;
 * then the hand moves on.
 */
static void update_grants(struct session *session)
{
	struct store *store = session->sessions->store;
	uint32_t *hand = &session->holdings.grant_hand;
	const struct grant_record *record;

	for (uint32_t n = 0; *hand && n < GRANTS_PER_ROUND; n++) {
		record = catalog_grant(&store->catalog, *hand);
		*hand = record->session_link.next;
		(void)slot_update_state(store, record->slot);
		catalog_commit(&store->catalog);
	}
}

static bool has_work(const struct session *session)
{
	return session->is_ending || session->is_draining ||
	       session->holdings.grant_hand;
}

/* Returns true if there is more to do. */
static bool on_idle(struct session *session)
{
	if (session->is_ending)
		return !session_end_round(session);
	if (session->holdings.grant_hand)
		update_grants(session);
	else
		session_collect(session);
	return has_work(session);
}

bool sessions_on_idle(struct sessions *sessions)
{
	uint32_t n =
		catalog_n_touched(&sessions->store->catalog, SECTION_SESSION);
	uint64_t end_ns = uv_hrtime() + ROUND_NS;
	bool has_more = false;
	struct session *session;

	for (uint32_t i = 0; i < n; i++) {
		sessions->hand = sessions->hand < n ? sessions->hand + 1 : 1;
		session = session_at(sessions, sessions->hand);
		if (!session || !has_work(session))
			continue;
		has_more |= on_idle(session);
		if (uv_hrtime() >= end_ns)
			return true;
	}
	return has_more;
}

static int watch(struct session *session, int fd, uv_poll_t *poll,
		 uv_poll_cb on_event, struct error *err)
{
	int r;

	r = uv_poll_init(&session->sessions->base->loop.uv, poll, fd);
	if (r < 0)
		return error_set(err, r, "cannot watch descriptor %d: %s", fd,
				 uv_strerror(r));
	poll->data = session;
	session->n_handles++;
	r = uv_poll_start(poll, UV_READABLE, on_event);
	if (r < 0)
		return error_set(err, r, "cannot watch descriptor %d: %s", fd,
				 uv_strerror(r));
	return 0;
}

/* --- beginning ----------------------------------------------------------- */

static void on_granted(struct holdings *holdings)
{
	struct session *session = session_of(holdings);

	if (session->peer)
		peer_on_granted(session->peer);
}

static struct session *session_alloc(struct sessions *sessions)
{
	struct session *session = calloc(1, sizeof(*session));

	if (!session)
		return NULL;
	session->sessions = sessions;
	session->holdings.store = sessions->store;
	session->holdings.on_granted = on_granted;
	session->holdings.refs = REFS_NULL;
	session->holdings.timelines = TIMELINES_NULL;
	session->holdings.timelines_readonly_fd = -1;
	session->pidfd = -1;
	session->doorbell_fd = -1;
	return session;
}

static int make_files(struct session *session, struct error *err)
{
	int r = failpoint_fail("session.files");

	if (r < 0)
		return error_errno(err, r, "cannot make a session's files");
	r = refs_create(&session->holdings.refs, err);
	if (r < 0)
		return r;
	session->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (session->doorbell_fd < 0)
		return error_errno(err, -errno, "cannot make a doorbell");
	r = watch(session, session->pidfd, &session->pidfd_poll, on_pidfd, err);
	if (r < 0)
		return r;
	return watch(session, session->doorbell_fd, &session->doorbell_poll,
		     on_doorbell, err);
}

/* Read the properties of a process for a new record. */
static int describe(pid_t pid, int pidfd, struct session_record *ret,
		    struct error *err)
{
	int r;

	r = process_start_time(pid, &ret->start_time, err);
	/* If the process has not exited by now, the start time that was read is
	 * its own, not that of a later process with its pid. */
	if (process_has_ended(pidfd))
		return error_set(err, -ESRCH, "process %d has ended", (int)pid);
	if (r < 0)
		return error_wrap(err, r,
				  "cannot read the start time of process %d "
				  "(the broker must be allowed to see "
				  "/proc/PID/stat)",
				  (int)pid);
	if (getrandom(ret->token, TOKEN_SIZE, 0) != TOKEN_SIZE)
		return error_errno(err, -errno, "cannot get random bytes");
	process_command(pid, ret->command);
	ret->pid = (uint32_t)pid;
	ret->born_ms = now_ms();
	return 0;
}

/* Make this the record of the session. */
static void enlist(struct session *session, uint32_t index)
{
	const struct session_record *record =
		catalog_session(&session->sessions->store->catalog, index);
	struct holdings *holdings = &session->holdings;

	assert(!session->sessions->store->holdings[index]);
	holdings->index = index;
	holdings->credentials.uid = record->uid;
	holdings->credentials.gid = record->gid;
	session->sessions->store->holdings[index] = holdings;
}

static int make_record(struct session *session,
		       const struct session_record *from, struct error *err)
{
	struct catalog *catalog = &session->sessions->store->catalog;
	struct session_record *record;
	uint32_t index = catalog_alloc(catalog, SECTION_SESSION);

	if (!index)
		return error_set(err, -EUSERS,
				 "the broker has %u sessions already, which is "
				 "the limit; end some",
				 catalog_n_live(catalog, SECTION_SESSION));
	record = catalog_session(catalog, index);
	*record = *from;
	record->id = catalog->header->next_session_id;
	catalog_set(catalog, catalog->header->next_session_id, record->id + 1);
	enlist(session, index);
	failpoint("session.new");
	catalog_commit(catalog);
	return 0;
}

static int charge(struct session *session, uid_t uid, struct error *err)
{
	struct accounts *accounts = &session->sessions->base->accounts;
	struct account *account = accounts_get(accounts, uid);
	int r;

	if (!account)
		return error_nomem(err, "an account");
	r = account_charge(accounts, account, ACCOUNT_SESSIONS, 1, err);
	if (r == 0)
		session->holdings.account = account;
	return r;
}

static int set_up(struct session *session, pid_t pid, uid_t uid, gid_t gid,
		  uint64_t budget, struct error *err)
{
	struct session_record record = {
		.uid = uid, .gid = gid, .budget = budget};
	int r;

	r = charge(session, uid, err);
	if (r == 0)
		r = describe(pid, session->pidfd, &record, err);
	if (r == 0)
		r = make_files(session, err);
	if (r < 0)
		return r;
	record.refs_inode = session->holdings.refs.inode;
	return make_record(session, &record, err);
}

int session_new(struct sessions *sessions, pid_t pid, uid_t uid, gid_t gid,
		int pidfd, uint64_t budget, struct session **ret,
		struct error *err)
{
	struct session *session = session_alloc(sessions);
	int r;

	if (!session) {
		close(pidfd);
		return error_nomem(err, "a session");
	}
	session->pidfd = pidfd;
	r = set_up(session, pid, uid, gid, budget, err);
	if (r < 0) {
		if (session->holdings.account)
			account_refund(session->holdings.account,
				       ACCOUNT_SESSIONS, 1);
		session_stop(session);
		return r;
	}
	sessions->n++;
	*ret = session;
	return 0;
}

/* --- after a restart ----------------------------------------------------- */

/* If memory runs out, the process is watched only when it next connects. */
static void plan_look(struct session *session)
{
	(void)retry_plan(&session->look, FIRST_LOOK_MS, LAST_LOOK_MS, NULL);
}

/* Returns whether enough descriptors stay free above `fd`, which has the lowest
 * free number. The rest of the adoption and clients that reconnect need
 * descriptors, too. */
static bool leaves_descriptors(int fd)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) < 0 ||
	       (rlim_t)fd + SPARE_DESCRIPTORS < limit.rlim_cur;
}

/* Watch the process of an adopted session. Returns -ESRCH if the process has
 * exited; after any other error this is not known. */
static int find_process(struct session *session)
{
	const struct session_record *record = session_record(session);
	int pidfd = -1;
	int r;

	r = process_open((pid_t)record->pid, record->start_time, &pidfd);
	if (r == 0 && !leaves_descriptors(pidfd)) {
		close(pidfd);
		r = -EMFILE;
	}
	return r < 0 ? r : session_watch_process(session, pidfd, NULL);
}

static void on_look(void *data, uint32_t index)
{
	struct session *session = data;
	int r;

	(void)index;
	r = find_process(session);
	if (r == -ESRCH)
		note_death(session);
	else if (r < 0)
		plan_look(session);
}

int session_watch_process(struct session *session, int pidfd, struct error *err)
{
	int r;

	if (session->pidfd >= 0) {
		close(pidfd);
		return 0;
	}
	r = watch(session, pidfd, &session->pidfd_poll, on_pidfd, err);
	if (r < 0) {
		close(pidfd);
		return r;
	}
	session->pidfd = pidfd;
	retry_stop(&session->look);
	return 0;
}

/* Evaluate `r`, the result of find_process(). */
static enum session_outcome adopt_outcome(struct session *session, int r)
{
	if (r == -ESRCH)
		return SESSION_GONE;
	if (r < 0) {
		session->sessions->n_unwatched++;
		plan_look(session);
	}
	return SESSION_ALIVE;
}

int session_adopt(struct sessions *sessions, uint32_t index, struct error *err)
{
	const struct session_record *record =
		catalog_session(&sessions->store->catalog, index);
	struct session *session = session_alloc(sessions);

	if (!session)
		return error_nomem(err, "a session");
	session->holdings.account =
		accounts_get(&sessions->base->accounts, record->uid);
	if (!session->holdings.account) {
		free(session);
		return error_nomem(err, "an account");
	}
	account_charge_adopted(session->holdings.account, ACCOUNT_SESSIONS, 1);
	account_charge_adopted(session->holdings.account, ACCOUNT_GRANTS,
			       record->grants.n);
	session->look.deadlines = &sessions->base->deadlines;
	session->look.fn = on_look;
	session->look.data = session;
	/* It is not recorded whether the earlier broker sent it such memory. */
	session->has_device_memory = true;
	enlist(session, index);
	sessions->n++;
	timeline_file_adopt(&session->holdings);
	recorded_reply_adopt(session);
	return (int)adopt_outcome(session, find_process(session));
}

/*
 * Check a doorbell that a client sends back after a restart. It must be an
 * eventfd without EFD_SEMAPHORE, because with that flag one write could wake
 * the broker any number of times.
 */
int session_check_doorbell(int fd, struct error *err)
{
	char path[64], text[FDINFO_SIZE] = "";
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, text, sizeof(text) - 1);
	if (n < 0)
		return error_errno(err, -errno, "cannot read the doorbell");
	text[n] = '\0';
	if (strcmp(text, "anon_inode:[eventfd]") != 0)
		return error_set(err, -EPROTO,
				 "the doorbell is not an eventfd");
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	if (process_read_file(path, text, sizeof(text), NULL) == 0 &&
	    strstr(text, "eventfd-semaphore: 1"))
		return error_set(err, -EPROTO, "the doorbell is a semaphore");
	return 0;
}

static int take_refs(struct session *session, int fd, struct error *err)
{
	struct refs refs = REFS_NULL;
	int r;

	r = refs_open(&refs, fd, REFS_BROKER, err);
	if (r < 0)
		return error_wrap(err, r, "cannot open the ref-counter file");
	if (refs.inode != session_record(session)->refs_inode) {
		refs_close(&refs);
		return error_set(
			err, -EPERM,
			"the file is not the ref-counter file of session %llu",
			(unsigned long long)session_record(session)->id);
	}
	if (session->holdings.refs.entries)
		refs_close(&refs);
	else
		session->holdings.refs = refs;
	return 0;
}

int session_reattach(struct session *session, int refs_fd, int doorbell_fd,
		     struct error *err)
{
	bool was_known = session->holdings.refs.entries != NULL;
	int r;

	r = take_refs(session, refs_fd, err);
	if (r == 0 && session->doorbell_fd < 0) {
		r = watch(session, doorbell_fd, &session->doorbell_poll,
			  on_doorbell, err);
		if (r == 0) {
			session->doorbell_fd = doorbell_fd;
			doorbell_fd = -1;
		}
	}
	if (doorbell_fd >= 0)
		close(doorbell_fd);
	if (r < 0 || was_known)
		return r;
	session->holdings.grant_hand = session_record(session)->grants.first;
	if (session_may_work(session->sessions))
		update_grants(session);
	if (session->holdings.grant_hand)
		loop_defer(&session->sessions->base->loop,
			   &session->sessions->draining);
	return 0;
}

static bool is_equal(const uint8_t a[TOKEN_SIZE], const uint8_t b[TOKEN_SIZE])
{
	uint8_t difference = 0;

	/* Compare all bytes, so that the time does not depend on the
	 * first difference. */
	for (int i = 0; i < TOKEN_SIZE; i++)
		difference |= a[i] ^ b[i];
	return difference == 0;
}

struct session *session_find(struct sessions *sessions, uint64_t id,
			     const uint8_t token[TOKEN_SIZE], struct error *err)
{
	const struct session_record *record;
	struct session *session;

	for (uint32_t i = 1; i <= CATALOG_MAX_SESSIONS; i++) {
		session = session_at(sessions, i);
		if (!session)
			continue;
		record = session_record(session);
		if (record->id == id && is_equal(record->token, token) &&
		    !session->is_ending && !session->is_dead)
			return session;
	}
	error_set(err, -ESTALE,
		  "there is no session %llu: the broker was started without "
		  "its earlier memory, or the session was ended; connect again",
		  (unsigned long long)id);
	return NULL;
}

/* --- administrators ------------------------------------------------------ */

static bool is_root_or_own(const struct sessions *sessions, uid_t uid)
{
	return uid == 0 || uid == sessions->own_uid;
}

/* Like session_is_admin(), for a connection without a session. */
static bool is_admin(const struct sessions *sessions, uid_t uid, gid_t gid,
		     int sock_fd)
{
	const struct config *config = &sessions->base->config;
	gid_t groups[CREDENTIALS_MAX_GROUPS];
	uint32_t n;

	if (is_root_or_own(sessions, uid))
		return true;
	if (config->admin_group == CONFIG_NO_GROUP)
		return false;
	if (gid == config->admin_group)
		return true;
	n = peer_read_groups(sock_fd, groups);
	while (n > 0 && groups[n - 1] != config->admin_group)
		n--;
	return n > 0;
}

int session_check_room(struct sessions *sessions, uid_t uid, gid_t gid,
		       int sock_fd, struct error *err)
{
	uint64_t reserved = sessions->base->config.sessions_reserved;
	bool is_draining = sessions->store->catalog.header->is_draining;

	if ((!is_draining && sessions->n + reserved < CATALOG_MAX_SESSIONS) ||
	    is_admin(sessions, uid, gid, sock_fd))
		return 0;
	if (is_draining)
		return error_set(
			err, -ESHUTDOWN,
			"the broker is being drained and takes no new "
			"sessions until an administrator runs 'fsdpctl "
			"drain --cancel'");
	return error_set(err, -EUSERS,
			 "the broker has %u of at most %d sessions, and the "
			 "last %llu are for root and the admin group "
			 "(sessions_reserved): end some",
			 sessions->n, CATALOG_MAX_SESSIONS,
			 (unsigned long long)reserved);
}

bool session_is_admin(const struct session *session)
{
	const struct credentials *credentials = &session->holdings.credentials;
	const struct config *config = &session->sessions->base->config;

	if (is_root_or_own(session->sessions, credentials->uid))
		return true;
	return config->admin_group != CONFIG_NO_GROUP &&
	       credentials_have_group(credentials, (gid_t)config->admin_group);
}
