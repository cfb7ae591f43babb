# Counts and shows the results of tests. CTest's output says how each program
# ended, and its log what each program printed. Prints "programs passed failed
# skipped", and the output of programs that failed. scripts/test runs this
# script; tests/integration/summary.sh tests it.
#
#   awk -v preset=NAME -v reasons=FILE -v times=FILE -v hung=FILE
#       -v failures=FILE -f summary.awk CTEST_OUTPUT LAST_TEST_LOG
#
# A Criterion program counts as the tests that it contains, any other program as
# one test. If a program was run again, its last run counts. Skipped tests count
# in whatever form a program names them: as Criterion, as pytest, or as our
# scripts do.
#
# The file `reasons` gets the reasons, one line for equal ones. `times` gets the
# duration of each run, and `hung` the programs that were run again. `failures`
# gets the name of each program that failed, and the lines of its log that name
# assertions, or its last lines if there are none.

function skip(n, reason)
{
	skips += n
	why[reason] += n
}

FNR == NR {
	if (/^ *([0-9]+\/[0-9]+ +)?Test +#[0-9]+: /) {
		sub(/^.*#[0-9]+: /, "")
		name = $1
		runs[name]++
		end[name] = /\*\*\*Skipped/ ? "skipped" : / Passed / ? "passed" : "failed"
		printf "%8.1f s  %s (%s)\n", $(NF - 1), name, preset >> times
	}
	next
}
/^[0-9]+\/[0-9]+ Testing: / {
	name = $3; text = ""; brief = ""; tested = -1; skips = 0
	split("", why)
}
{ text = text $0 "\n" }
/^\[(----|FAIL|ERR )\]|^(FAIL|ERROR): / { brief = brief $0 "\n" }
/^\[SKIP\] / {
	sub(/^\[SKIP\] [^ ]*: /, "")
	skip(1, $0)
}
/^SKIPPED \[[0-9]+\] / {
	n = substr($2, 2) + 0
	sub(/^SKIPPED \[[0-9]+\] [^ ]*: /, "")
	skip(n, $0)
}
/^skipped: / { skip(1, substr($0, 10)) }
/Synthesis: Tested: / {
	line = $0
	gsub(/[^0-9 ]/, " ", line)
	split(line, count, " ")
	tested = count[1]; passing = count[2]; failing = count[3]
}
/^"[^"]*" time elapsed: / {
	if (++seen[name] < runs[name]) {
		printf "%s (%s)\n", name, preset >> hung
		next
	}
	programs++
	if (end[name] == "skipped" && !skips)
		skip(1, "it does not say why")
	skipped += skips
	for (reason in why)
		printf "%s: %s (%s, %d)\n", name, reason, preset,
			why[reason] >> reasons
	if (end[name] == "skipped")
		next
	if (tested >= 0) {
		passed += passing; failed += failing
		if (failing == 0 && end[name] == "failed")
			failed++
	} else if (end[name] == "passed")
		passed++
	else
		failed++
	if (end[name] != "passed") {
		if (length(text) > 20000)
			text = substr(text, 1, 4000) "\n[...]\n" \
				substr(text, length(text) - 16000)
		printf "%s", text > "/dev/stderr"
		print "test: FAILED: " name > "/dev/stderr"
		if (brief == "")
			brief = text
		printf "%stest: FAILED: %s (%s)\n",
			substr(brief, length(brief) - 1500), name,
			preset >> failures
	}
}
END { print programs + 0, passed + 0, failed + 0, skipped + 0 }
