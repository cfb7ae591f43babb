/*
 * `fsdpd --supervised`: a parent process that keeps the broker's descriptors
 * and restarts the broker when it dies, for nodes without systemd.
 *
 * The parent never inspects the descriptors. For the child it acts like
 * systemd: the child stores descriptors over NOTIFY_SOCKET and gets them back
 * by LISTEN_FDS. If the parent itself is killed, the child continues without
 * it, and logs that.
 */
#pragma once

struct error;

/*
 * Run the supervisor. This returns twice, like fork(): with 1 in the child,
 * which continues as the broker, and with 0 in the parent at the end, with the
 * exit status in `ret_status`. `listen_fd` (borrowed) is passed to every child
 * as "listen"; in the child all other descriptors from 3 on are closed,
 * including `listen_fd`. The child is restarted when a signal kills it or it
 * exits with a status other than 0; after five deaths within ten seconds the
 * supervisor ends. SIGTERM, SIGINT and SIGHUP are forwarded.
 */
int supervise(int listen_fd, int *ret_status, struct error *err);
