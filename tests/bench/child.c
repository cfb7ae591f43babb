#include "child.h"
#include "bench.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void child_start(struct child *child, int cpu, child_fn *fn, void *data)
{
	int socks[2];

	sys(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks),
	    "socketpair");
	child->pid = sys(fork(), "fork");
	if (child->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(socks[0]);
		pin(cpu);
		fn(socks[1], data);
		_exit(0);
	}
	close(socks[1]);
	child->sock_fd = socks[0];
}

void child_wait(struct child *child)
{
	int status;

	sys(waitpid(child->pid, &status, 0), "wait for a child");
	close(child->sock_fd);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		die("a child of this row failed (wait status %#x)", status);
}

void child_kill(struct child *child)
{
	kill(child->pid, SIGKILL);
	sys(waitpid(child->pid, NULL, 0), "wait for a child");
	close(child->sock_fd);
}

void message_send(int sock_fd, const void *data, size_t size)
{
	ssize_t n = send(sock_fd, data, size, MSG_NOSIGNAL);

	if (n != (ssize_t)size)
		die("send %zu bytes to another process: %m", size);
}

void message_receive(int sock_fd, void *ret, size_t size)
{
	ssize_t n = recv(sock_fd, ret, size, 0);

	if (n != (ssize_t)size)
		die("another process of this row is gone (%zd of %zu bytes)", n,
		    size);
}
