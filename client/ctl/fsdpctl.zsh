#compdef fsdpctl
# Completion of fsdpctl for zsh. fsdpctl itself says what can follow.

_fsdpctl()
{
	local line
	local -a names shown
	for line in "${(@f)$("$words[1]" complete -- \
		"${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
		if [[ $line == :files ]]; then
			_files
		elif [[ -n $line ]]; then
			names+=("${line%%$'\t'*}")
			shown+=("${line/$'\t'/  }")
		fi
	done
	((${#names})) && compadd -l -d shown -a names
}

_fsdpctl "$@"
