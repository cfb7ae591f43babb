#include "broker/session/hello.h"
#include "broker/session/session.h"
#include "broker/session/sessions.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/frame.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; not in the headers of 6.1 */
#endif

void hello_init(struct hello *hello, struct sessions *sessions, int sock_fd,
		const struct ucred *cred)
{
	*hello = (struct hello){
		.sessions = sessions,
		.sock_fd = sock_fd,
		.cred = cred,
		.pidfd = -1,
		.fds = {-1, -1},
	};
}

static void drop_fds(struct hello *hello)
{
	for (int i = 0; i < 2; i++) {
		if (hello->fds[i] >= 0)
			closer_put(&hello->sessions->base->closer,
				   hello->cred->uid, hello->fds[i]);
		hello->fds[i] = -1;
	}
}

void hello_deinit(struct hello *hello)
{
	drop_fds(hello);
	if (hello->pidfd >= 0)
		close(hello->pidfd);
	hello->pidfd = -1;
}

/* --- the session --------------------------------------------------------- */

static void set_session(struct session *session, struct hello_outcome *ret)
{
	const struct session_record *record = session_record(session);

	ret->session = session;
	ret->reply = (struct hello_reply){
		.session = record->id,
		.n_slots = TABLE_SLOTS,
	};
	memcpy(ret->reply.token, record->token, TOKEN_SIZE);
}

static int begin_session(struct hello *hello, struct hello_outcome *ret,
			 struct error *err)
{
	const struct ucred *cred = hello->cred;
	struct sessions *sessions = hello->sessions;
	int pidfd = hello->pidfd;
	struct session *session;
	int r;

	r = session_check_room(sessions, cred->uid, cred->gid, hello->sock_fd,
			       err);
	if (r < 0)
		return r;
	hello->pidfd = -1;
	r = session_new(sessions, cred->pid, cred->uid, cred->gid, pidfd,
			hello->request.budget, &session, err);
	if (r < 0)
		return r;
	set_session(session, ret);
	ret->fds[ret->n_fds++] = sessions->table_readonly_fd;
	ret->fds[ret->n_fds++] = session->holdings.refs.fd;
	ret->fds[ret->n_fds++] = session->doorbell_fd;
	failpoint("hello.new");
	return 0;
}

static int copy_fd(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	return copy < 0 ? -errno : copy;
}

/*
 * A file's server may be called at every close of a copy, not only the last.
 * So only a memory file and an eventfd are copied, whose copies may be closed
 * here; the last close is left to the closer.
 */
static int check_fds(const struct hello *hello, const struct session *session,
		     struct error *err)
{
	if (fcntl(hello->fds[0], F_GET_SEALS) < 0)
		return error_set(err, -EINVAL,
				 "cannot take the session back: its "
				 "ref-counter file is no memory file");
	if (session->doorbell_fd >= 0)
		return 0;
	return session_check_doorbell(hello->fds[1], err);
}

/* Give the session copies of its files. */
static int return_fds(struct hello *hello, struct session *session,
		      struct error *err)
{
	int refs_fd, doorbell_fd = -1, r;

	r = failpoint_fail("hello.copy");
	refs_fd = r < 0 ? r : copy_fd(hello->fds[0]);
	if (refs_fd < 0)
		return error_errno(err, refs_fd,
				   "copy the session's descriptors");
	if (session->doorbell_fd < 0) {
		doorbell_fd = copy_fd(hello->fds[1]);
		if (doorbell_fd < 0) {
			close(refs_fd);
			return error_errno(err, doorbell_fd,
					   "copy the session's descriptors");
		}
	}
	return session_reattach(session, refs_fd, doorbell_fd, err);
}

static int resume_session(struct hello *hello, struct hello_outcome *ret,
			  struct error *err)
{
	const struct session_record *record;
	int pidfd = hello->pidfd;
	struct session *session;
	int r;

	session = session_find(hello->sessions, hello->request.session,
			       hello->request.token, err);
	if (!session)
		return -ESTALE;
	record = session_record(session);
	if (record->pid != (uint32_t)hello->cred->pid ||
	    record->uid != hello->cred->uid)
		return error_set(err, -EPERM,
				 "session %llu belongs to process %u; connect "
				 "in the process that uses the connection",
				 (unsigned long long)record->id, record->pid);
	r = check_fds(hello, session, err);
	if (r < 0)
		return r;
	r = return_fds(hello, session, err);
	if (r < 0)
		return r;
	drop_fds(hello);
	hello->pidfd = -1;
	r = session_watch_process(session, pidfd, err);
	if (r < 0)
		return r;
	set_session(session, ret);
	failpoint("hello.again");
	return 0;
}

/* The identity of the client is verified: find its session. */
static int complete(struct hello *hello, struct hello_outcome *ret,
		    struct error *err)
{
	if (hello->request.is_reconnect)
		return resume_session(hello, ret, err);
	return begin_session(hello, ret, err);
}

/* --- the process --------------------------------------------------------- */

static int get_peer_pidfd(int sock_fd)
{
	socklen_t size = sizeof(int);
	int pidfd = -1;
	int r = failpoint_fail("peer.pidfd");

	if (r < 0)
		return r;
	if (getsockopt(sock_fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) < 0)
		return -errno;
	return pidfd;
}

/* Open the pidfd of the client. `*ret_is_proven`: it is certainly the client's,
 * since the kernel recorded the process when it connected. */
static int open_pidfd(struct hello *hello, bool *ret_is_proven,
		      struct error *err)
{
	int pidfd = get_peer_pidfd(hello->sock_fd);

	*ret_is_proven = true;
	if (pidfd == -ENOPROTOOPT) {
		*ret_is_proven = false;
		pidfd = (int)syscall(SYS_pidfd_open, hello->cred->pid, 0);
		if (pidfd < 0)
			pidfd = -errno;
	}
	if (pidfd < 0)
		return error_errno(err, pidfd, "open a pidfd of process %d",
				   (int)hello->cred->pid);
	hello->pidfd = pidfd;
	return 0;
}

static int check_sender(const struct hello *hello,
			const struct frame_sender *sender, struct error *err)
{
	const struct ucred *cred = hello->cred;

	if (cred->uid == OVERFLOW_UID)
		return error_set(err, -EPERM,
				 "uid %d stands for every user that is not "
				 "known here; connect from a user namespace in "
				 "which this user is mapped",
				 OVERFLOW_UID);
	if (cred->pid <= 0)
		return error_set(err, -EPERM,
				 "the connecting process is not visible in the "
				 "broker's pid namespace; share it");
	if (sender->pid != cred->pid)
		return error_set(err, -EPERM,
				 "process %d connected but process %d says "
				 "hello; connect in the process that uses the "
				 "connection",
				 (int)cred->pid, (int)sender->pid);
	return 0;
}

static int challenge(struct hello *hello, struct hello_outcome *ret,
		     struct error *err)
{
	if (getrandom(&hello->nonce, sizeof(hello->nonce), 0) !=
	    (ssize_t)sizeof(hello->nonce))
		return error_errno(err, -errno, "get random bytes");
	hello->is_challenged = true;
	ret->reply = (struct hello_reply){
		.is_challenge = true,
		.nonce = hello->nonce,
	};
	return 0;
}

/* --- frames -------------------------------------------------------------- */

static int check_request(const struct hello_request *request,
			 const struct frame *frame, struct error *err)
{
	uint16_t n_fds = request->is_reconnect ? 2 : 0;

	if (request->major != PROTOCOL_MAJOR)
		return error_set(err, -EPROTO,
				 "the client speaks protocol %u.%u, this "
				 "broker (version %s) speaks %d.%d; install "
				 "the same version of both",
				 request->major, request->minor, FSDP_VERSION,
				 PROTOCOL_MAJOR, PROTOCOL_MINOR);
	if (frame->n_fds != n_fds)
		return error_set(err, -EPROTO,
				 "a hello came with %u descriptors, not with "
				 "%u",
				 frame->n_fds, n_fds);
	return 0;
}

static int on_request(struct hello *hello, struct frame *frame,
		      const struct frame_sender *sender,
		      struct hello_outcome *ret, struct error *err)
{
	struct request request;
	bool is_proven = false;
	int r;

	if (frame->kind != MESSAGE_HELLO)
		return error_set(err, -EPROTO,
				 "a connection begins with a hello, not with a "
				 "request of kind %u",
				 frame->kind);
	r = request_decode(frame->kind, frame->body, frame->body_size, &request,
			   err);
	if (r < 0)
		return r;
	hello->request = request.hello;
	request_deinit(&request);
	r = check_request(&hello->request, frame, err);
	if (r < 0)
		return r;
	r = check_sender(hello, sender, err);
	if (r < 0)
		return r;
	r = open_pidfd(hello, &is_proven, err);
	if (r < 0)
		return r;
	for (uint16_t i = 0; i < frame->n_fds; i++) {
		hello->fds[i] = frame->fds[i];
		frame->fds[i] = -1;
	}
	return is_proven ? complete(hello, ret, err)
			 : challenge(hello, ret, err);
}

static int check_proof(const struct hello *hello, uint64_t nonce,
		       const struct frame_sender *sender, struct error *err)
{
	struct pollfd pollfd = {.fd = hello->pidfd, .events = POLLIN};
	int r;

	r = check_sender(hello, sender, err);
	if (r < 0)
		return r;
	if (nonce != hello->nonce)
		return error_set(err, -EPERM,
				 "the challenge was answered with a wrong "
				 "nonce");
	if (poll(&pollfd, 1, 0) != 0)
		return error_set(err, -ESRCH, "process %d is gone",
				 (int)hello->cred->pid);
	return 0;
}

/*
 * The reply to the challenge carries the sender's pid as the kernel saw it, and
 * a nonce that was made after our pidfd was opened. If the process of that
 * pidfd has not exited by now, no other process can have had the pid in
 * between.
 */
static int on_proof(struct hello *hello, const struct frame *frame,
		    const struct frame_sender *sender,
		    struct hello_outcome *ret, struct error *err)
{
	struct request request;
	uint64_t nonce;
	int r;

	if (frame->kind != MESSAGE_CHALLENGE || frame->n_fds > 0)
		return error_set(err, -EPROTO,
				 "the challenge was not answered");
	r = request_decode(frame->kind, frame->body, frame->body_size, &request,
			   err);
	if (r < 0)
		return r;
	nonce = request.challenge.nonce;
	request_deinit(&request);
	r = check_proof(hello, nonce, sender, err);
	if (r < 0)
		return r;
	hello->is_challenged = false;
	return complete(hello, ret, err);
}

int hello_on_frame(struct hello *hello, struct frame *frame,
		   const struct frame_sender *sender, struct hello_outcome *ret,
		   struct error *err)
{
	*ret = (struct hello_outcome){0};
	if (hello->is_challenged)
		return on_proof(hello, frame, sender, ret, err);
	return on_request(hello, frame, sender, ret, err);
}
