/*
 * How long tests wait for events that must happen. Only a failing test waits
 * this long; it prints what it waited for before the time-out of its suite (300
 * s) ends it.
 */
#pragma once

#define PATIENCE_MS 120000
