/*
 * `fsdpd --supervised`: a parent that keeps the broker's descriptors and
 * restarts the broker when it dies, for nodes without systemd.
 *
 * The parent never inspects what it keeps. To the child it looks like systemd:
 * the child stores over NOTIFY_SOCKET and gets descriptors back by LISTEN_FDS.
 * If the parent itself is killed, the child continues unsupervised, and logs
 * it.
 */
#pragma once

struct error;

/*
 * Returns twice, like fork(): with 1 in the child, which continues as the
 * broker; and in the parent at the end, with 0 and the exit status in
 * `ret_status`. `listen_fd` (borrowed) is passed to every child as "listen"; in
 * the child all other descriptors from 3 up are closed, including `listen_fd`.
 * The child is restarted when a signal kills it or it exits with a status other
 * than 0; after five deaths within ten seconds the supervisor ends. SIGTERM,
 * SIGINT and SIGHUP are forwarded.
 */
int supervise(int listen_fd, int *ret_status, struct error *err);
