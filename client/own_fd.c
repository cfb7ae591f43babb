#include "client/own_fd.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

/* Real-time signals. F_SETSIG accepts all of them. */
#define FIRST_MARK 40
#define N_MARKS    24

/* Connections have different marks, because if a program connects again after
 * it has closed our descriptors, the new ones may have the old numbers. */
int own_fd_mark_first(int fd)
{
	static _Atomic unsigned int n_connections;
	int mark = FIRST_MARK + (int)(n_connections++ % N_MARKS);

	own_fd_mark(fd, mark);
	return fcntl(fd, F_GETSIG) == mark ? mark : 0;
}

void own_fd_mark(int fd, int mark)
{
	if (fd >= 0 && mark)
		(void)fcntl(fd, F_SETSIG, mark);
}

bool own_fd_is(int fd, int mark)
{
	return fd >= 0 &&
	       (mark ? fcntl(fd, F_GETSIG) == mark : fcntl(fd, F_GETFD) >= 0);
}

void own_fd_close(int fd, int mark)
{
	if (own_fd_is(fd, mark))
		(void)close(fd);
}
