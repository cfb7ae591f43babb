/*
 * `fsdpd --supervised`: a parent that keeps the broker's descriptors and
 * starts it again when it dies, for nodes without systemd.
 *
 * The parent never looks into what it keeps. The child cannot tell it from
 * systemd: NOTIFY_SOCKET to store, LISTEN_FDS to get back. If the parent
 * itself is killed the child goes on, unsupervised, and says so.
 */
#pragma once

struct error;

/*
 * Returns twice, like fork(): 1 in the child, which goes on as the broker; in
 * the parent when all is over, with 0 and the exit status in `ret_status`.
 * `listen_fd` (borrowed) is passed on to every child as "listen"; in the child
 * all other descriptors from 3 up are closed, also `listen_fd`. The child is
 * restarted when a signal kills it or it exits with a status other than 0;
 * five deaths within ten seconds end it all. SIGTERM and SIGINT are passed on.
 */
int supervise(int listen_fd, int *ret_status, struct error *err);
