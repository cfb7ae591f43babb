/*
 * If a document must be made first, the connection of the request is suspended,
 * and the collector's thread resumes it; meanwhile the server serves others.
 *
 * A web page of another site must not read this one through a name that
 * resolves to this machine ("DNS rebinding"), so the Host must be an address or
 * a name of this machine.
 */
#include "client/exporter/server.h"
#include "client/exporter/collector.h"
#include "client/exporter/documents.h"
#include "client/exporter/page.h"
#include "proto/error.h"
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CONNECTIONS  64
#define MAX_PER_ADDRESS  32
#define TIMEOUT_S        15
#define CONNECTION_BYTES 32768u /* limit of a request's head */
#define N_NAMES          4      /* that this machine can have */
#define NAME_SIZE        256

#define TEXT    "text/plain; charset=utf-8"
#define METRICS "text/plain; version=0.0.4; charset=utf-8"
#define JSON    "application/json"

struct server {
	struct MHD_Daemon *daemon;
	struct collector *collector;
	char names[N_NAMES][NAME_SIZE]; /* of this machine; unused ones: "" */
};

/* A request and its reply. */
struct exchange {
	struct collector_waiter waiter;
	struct MHD_Connection *connection;
	bool is_begun, has_waited;
};

/* --- replies ------------------------------------------------------------- */

static const char *const common_headers[][2] = {
	{"Content-Security-Policy",
	 "default-src 'none'; script-src 'self'; style-src 'self'; "
	 "img-src 'self'; connect-src 'self'; base-uri 'none'; "
	 "form-action 'none'; frame-ancestors 'none'"},
	{"X-Content-Type-Options", "nosniff"},
	{"Referrer-Policy", "no-referrer"},
	{"Cross-Origin-Resource-Policy", "same-origin"},
};

/* Reply with `text`, which is copied, kept, or freed with the reply, as `mode`
 * says. */
static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status,
			     const char *type, const char *cache,
			     const void *text, size_t size,
			     enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(
		size, (void *)(uintptr_t)text, mode);
	enum MHD_Result r;

	if (!response)
		return MHD_NO;
	for (size_t i = 0; i < sizeof(common_headers) / sizeof(*common_headers);
	     i++)
		MHD_add_response_header(response, common_headers[i][0],
					common_headers[i][1]);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, cache);
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW,
					"GET, HEAD");
	r = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return r;
}

static enum MHD_Result reply_line(struct MHD_Connection *connection,
				  unsigned status, const char *line)
{
	return reply(connection, status, TEXT, "no-store", line, strlen(line),
		     MHD_RESPMEM_MUST_COPY);
}

/* --- the Host header ----------------------------------------------------- */

static bool is_address(const char *host)
{
	struct in_addr in4;

	/* An IPv6 address is in brackets, which a name cannot contain. */
	return *host == '[' || inet_pton(AF_INET, host, &in4) == 1;
}

/* Find the names of this machine: its host name, that without a domain, and the
 * one with the domain that the resolver knows. No other domain is right,
 * because anybody can have a domain in which this host name is a name, too. */
static void find_names(char names[N_NAMES][NAME_SIZE])
{
	const struct addrinfo hints = {.ai_flags = AI_CANONNAME};
	struct addrinfo *found;

	strcpy(names[0], "localhost");
	if (gethostname(names[1], NAME_SIZE - 1) < 0)
		return;
	snprintf(names[2], NAME_SIZE, "%.*s", (int)strcspn(names[1], "."),
		 names[1]);
	if (getaddrinfo(names[1], NULL, &hints, &found) != 0)
		return;
	if (found->ai_canonname)
		snprintf(names[3], NAME_SIZE, "%s", found->ai_canonname);
	freeaddrinfo(found);
}

static bool is_own_name(const struct server *server, const char *host)
{
	for (size_t i = 0; i < N_NAMES; i++)
		if (*host && strcasecmp(host, server->names[i]) == 0)
			return true;
	return false;
}

static bool is_host_ours(const struct server *server,
			 struct MHD_Connection *connection)
{
	const char *given = MHD_lookup_connection_value(
		connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
	char host[NAME_SIZE];

	/* HTTP/1.0 requests have no Host, and browsers do not send them. */
	if (!given)
		return true;
	snprintf(host, sizeof(host), "%s", given);
	if (*host != '[')
		host[strcspn(host, ":")] = '\0';
	return is_address(host) || is_own_name(server, host);
}

/* --- documents ----------------------------------------------------------- */

static void wake(struct collector_waiter *waiter)
{
	/* The waiter is the first member. */
	struct exchange *exchange = (struct exchange *)waiter;

	MHD_resume_connection(exchange->connection);
}

/* Make the document that says that the broker does not reply. */
static char *make_away(enum collector_document which, size_t *ret_size)
{
	char *text;

	if (which == COLLECTOR_METRICS)
		return documents_metrics(NULL, ret_size);
	text = documents_away("the broker does not answer", NULL);
	*ret_size = text ? strlen(text) : 0;
	return text;
}

static enum MHD_Result serve_document(struct server *server,
				      struct exchange *exchange,
				      enum collector_document which)
{
	uint64_t max_age_ms = exchange->has_waited ? COLLECTOR_PATIENCE_MS
						   : COLLECTOR_FRESH_MS;
	size_t size = 0;
	char *text = collector_get(server->collector, which, max_age_ms, &size);

	if (!text && !exchange->has_waited) {
		exchange->has_waited = true;
		exchange->waiter = (struct collector_waiter){
			.wanted = which,
			.wake = wake,
		};
		MHD_suspend_connection(exchange->connection);
		collector_wait(server->collector, &exchange->waiter);
		return MHD_YES;
	}
	if (!text)
		text = make_away(which, &size);
	if (!text)
		return reply_line(exchange->connection,
				  MHD_HTTP_INTERNAL_SERVER_ERROR,
				  "out of memory\n");
	return reply(exchange->connection, MHD_HTTP_OK,
		     which == COLLECTOR_METRICS ? METRICS : JSON, "no-store",
		     text, size, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result serve_health(struct server *server,
				    struct MHD_Connection *connection)
{
	if (collector_is_up(server->collector))
		return reply_line(connection, MHD_HTTP_OK, "ok\n");
	return reply_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
			  "the broker does not answer\n");
}

static enum MHD_Result serve(struct server *server, struct exchange *exchange,
			     const char *path, const char *method)
{
	struct MHD_Connection *connection = exchange->connection;
	const struct page_file *file;

	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 &&
	    strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return reply_line(
			connection, MHD_HTTP_METHOD_NOT_ALLOWED,
			"only the methods GET and HEAD are supported\n");
	if (!is_host_ours(server, connection))
		return reply_line(connection, MHD_HTTP_MISDIRECTED_REQUEST,
				  "the request names another host; use this "
				  "machine's address or host name\n");
	if (strcmp(path, "/metrics") == 0)
		return serve_document(server, exchange, COLLECTOR_METRICS);
	if (strcmp(path, "/status.json") == 0)
		return serve_document(server, exchange, COLLECTOR_STATUS);
	if (strcmp(path, "/healthz") == 0)
		return serve_health(server, connection);
	file = page_find(path);
	if (file)
		return reply(connection, MHD_HTTP_OK, file->type, "no-cache",
			     file->bytes, file->size, MHD_RESPMEM_PERSISTENT);
	return reply_line(connection, MHD_HTTP_NOT_FOUND,
			  "there is no such page; see /\n");
}

/* --- libmicrohttpd ------------------------------------------------------- */

/* Called when the head of a request has arrived, for each part of its body, and
 * when it is complete or resumed. */
static enum MHD_Result on_request(void *data, struct MHD_Connection *connection,
				  const char *path, const char *method,
				  const char *version, const char *body,
				  size_t *body_size, void **state)
{
	struct exchange *exchange = *state;

	(void)version;
	(void)body;
	if (!exchange) {
		exchange = calloc(1, sizeof(*exchange));
		if (!exchange)
			return MHD_NO;
		exchange->connection = connection;
		*state = exchange;
		return MHD_YES;
	}
	/* Requests have no body here; drop it. */
	if (*body_size > 0) {
		*body_size = 0;
		return MHD_YES;
	}
	return serve(data, exchange, path, method);
}

static void on_completed(void *data, struct MHD_Connection *connection,
			 void **state, enum MHD_RequestTerminationCode code)
{
	(void)data;
	(void)connection;
	(void)code;
	free(*state);
	*state = NULL;
}

int server_start(const struct sockaddr_storage *address,
		 struct collector *collector, struct server **ret,
		 struct error *err)
{
	unsigned flags = MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD |
			 MHD_ALLOW_SUSPEND_RESUME;
	struct server *server = calloc(1, sizeof(*server));

	if (!server)
		return error_nomem(err, "a server");
	server->collector = collector;
	find_names(server->names);
	if (address->ss_family == AF_INET6)
		flags |= MHD_USE_IPv6;
	errno = 0;
	server->daemon = MHD_start_daemon(
		flags, 0, NULL, NULL, on_request, server, MHD_OPTION_SOCK_ADDR,
		address, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
		MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)MAX_PER_ADDRESS,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
		MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
		MHD_OPTION_END);
	if (!server->daemon) {
		int code = errno ? -errno : -EIO;

		free(server);
		return error_set(err, code,
				 "%s; give another --address or --port",
				 strerror(-code));
	}
	*ret = server;
	return 0;
}

void server_stop(struct server *server)
{
	MHD_stop_daemon(server->daemon);
	free(server);
}

uint16_t server_port(const struct server *server)
{
	const union MHD_DaemonInfo *info =
		MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_BIND_PORT);

	return info ? info->port : 0;
}
