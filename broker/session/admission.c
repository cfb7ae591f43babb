#include "broker/session/admission.h"
#include "broker/session/session.h"
#include "broker/session/sessions.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void set_session(struct session *session, struct admission *ret)
{
	const struct session_record *record = session_record(session);

	ret->session = session;
	ret->reply = (struct hello_reply){
		.session = record->id,
		.n_slots = TABLE_SLOTS,
	};
	memcpy(ret->reply.token, record->token, TOKEN_SIZE);
}

static int begin_session(struct hello *hello, struct admission *ret,
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
 * Every close of a copy, not only the last, may call the server of the file's
 * file system, and wait for it. So only a memory file and an eventfd, which
 * have no server, are copied, and their copies may be closed here; the closer
 * closes the descriptors that the client sent.
 */
static int check_fds(const struct hello *hello, const struct session *session,
		     struct error *err)
{
	if (fcntl(hello->fds[0], F_GET_SEALS) < 0)
		return error_set(err, -EINVAL,
				 "cannot take the session back: its "
				 "ref-counter file is not a memory file");
	if (session->doorbell_fd >= 0)
		return 0;
	return session_check_doorbell(hello->fds[1], err);
}

/* Give the session copies of the descriptors that the client sent back. */
static int return_fds(struct hello *hello, struct session *session,
		      struct error *err)
{
	int refs_fd, doorbell_fd = -1, r;

	r = failpoint_fail("hello.copy");
	refs_fd = r < 0 ? r : copy_fd(hello->fds[0]);
	if (refs_fd < 0)
		return error_errno(err, refs_fd,
				   "cannot copy the session's descriptors");
	if (session->doorbell_fd < 0) {
		doorbell_fd = copy_fd(hello->fds[1]);
		if (doorbell_fd < 0) {
			close(refs_fd);
			return error_errno(
				err, doorbell_fd,
				"cannot copy the session's descriptors");
		}
	}
	return session_reattach(session, refs_fd, doorbell_fd, err);
}

static int resume_session(struct hello *hello, struct admission *ret,
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
	hello_drop_fds(hello);
	hello->pidfd = -1;
	r = session_watch_process(session, pidfd, err);
	if (r < 0)
		return r;
	set_session(session, ret);
	failpoint("hello.again");
	return 0;
}

int admission_decide(struct hello *hello, struct admission *ret,
		     struct error *err)
{
	*ret = (struct admission){0};
	if (hello->request.is_reconnect)
		return resume_session(hello, ret, err);
	return begin_session(hello, ret, err);
}
