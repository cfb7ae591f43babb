/*
 * Detects whether a descriptor is still the library's. A program may close
 * descriptors that it does not know of, by closefrom(), and open files of its
 * own under the same numbers. So the library marks its open files, and looks
 * for the mark before it reads, writes, sends or closes by a number, and before
 * it begins to poll the socket. While it waits there, it polls again without a
 * look.
 *
 * The mark is the signal number of F_SETSIG, which belongs to the open file,
 * and which the kernel uses only for files with O_ASYNC. The check is wrong if
 * a program sets the same signal on its own file, or if another thread closes
 * the descriptor between the look and the use.
 */
#pragma once
#include <stdbool.h>

/* Mark this open file, the first of a connection. Returns the mark of the
 * connection; 0: this kernel keeps no marks, and the functions below accept
 * every open file. */
int own_fd_mark_first(int fd);
/* Mark another file of the connection. A negative `fd` is ignored. */
void own_fd_mark(int fd, int mark);

/* Tell whether the descriptor is open and has the mark. */
bool own_fd_is(int fd, int mark);
/* Close the descriptor if own_fd_is() is true for it. */
void own_fd_close(int fd, int mark);
