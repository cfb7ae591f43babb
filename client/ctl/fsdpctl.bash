# Completion of fsdpctl for bash: verbs, each verb's options, files, and the
# names of published tensors, which are asked from the broker.

_fsdpctl_names()
{
	fsdpctl ls "$1" 2>/dev/null | awk 'NR > 1 && !NF { exit } NR > 1 { print $1 }'
}

_fsdpctl_bundles()
{
	_fsdpctl_column ls 1 --bundles "$1"
}

# A column of what a verb lists: the verb, which column, operands.
_fsdpctl_column()
{
	fsdpctl "$1" "${@:3}" 2>/dev/null |
		awk -v column="$2" 'NR > 1 { print $column }'
}

_fsdpctl_value()
{
	case $1 in
	--socket | --output | -o)
		compopt -o filenames
		COMPREPLY=($(compgen -f -- "$2"))
		;;
	--device)
		COMPREPLY=($(compgen -W "host $(_fsdpctl_column devices 1)" \
			-- "$2"))
		;;
	--cast) COMPREPLY=($(compgen -W f32 -- "$2")) ;;
	--group) COMPREPLY=($(compgen -g -- "$2")) ;;
	--prefix)
		compopt -o nospace
		COMPREPLY=($(compgen -W "$(_fsdpctl_bundles "$2")" -- "$2"))
		;;
	--dtype)
		COMPREPLY=($(compgen -W "bool u8 i8 u16 i16 u32 i32 u64 i64 \
			f16 bf16 f32 f64 f8_e4m3 f8_e5m2 c64 c128" -- "$2"))
		;;
	--mode) # of plan; elsewhere it is octal
		[[ " ${COMP_WORDS[*]} " != *" plan "* ]] ||
			COMPREPLY=($(compgen -W "default custom_ops \
				custom_ops_multidtype coalesced" -- "$2"))
		;;
	--gather-mode | --reduce-mode)
		COMPREPLY=($(compgen -W "default custom_ops \
			custom_ops_multidtype coalesced" -- "$2"))
		;;
	--cap-mb | --gather-cap-mb | --reduce-cap-mb) ;;
	--sort) COMPREPLY=($(compgen -W "name bytes age holders" -- "$2")) ;;
	--by)
		COMPREPLY=($(compgen -W "uid process bundle prefix" -- "$2"))
		;;
	--name | --shape | --ttl | --timeout | --count | -c | --newer-than) ;;
	*) return 1 ;;
	esac
}

_fsdpctl_options()
{
	case $1 in
	load) echo --prefix --device --replace --mode --group --ttl --quiet --json ;;
	ls) echo --sort --long --bundles --json ;;
	rm) echo --prefix ;;
	du) echo --by --json ;;
	status) echo --reset --json ;;
	who | limbo | clients | tickets | prefixes | devices | comms | groups)
		echo --json
		;;
	stat) echo --timeout --json ;;
	wait) echo --newer-than --timeout --json ;;
	watch) echo --count --quiet --json ;;
	collect | trim) echo --json ;;
	evict) echo --device --json ;;
	drain) echo --timeout --cancel ;;
	get) echo --output --cast --timeout ;;
	put) echo --name --dtype --shape --device --replace --ttl --mode --group \
		--evictable --timeout --quiet --json ;;
	ping) echo --count --json ;;
	plan) echo --faithful --mode --gather-mode --reduce-mode --cap-mb \
		--gather-cap-mb --reduce-cap-mb --json ;;
	esac
	echo --socket --help
}

_fsdpctl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local verbs="load ls stat get put rm who limbo clients status ping plan"
	local verb="" word i

	verbs+=" comms groups end devices tickets revoke du help prefixes metrics"
	verbs+=" wait watch collect trim evict drain log-level"
	COMPREPLY=()
	_fsdpctl_value "$prev" "$cur" && return
	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		case " $verbs " in *" $word "*) verb=$word && break ;; esac
	done
	if [[ $cur == -* ]]; then
		local options
		options=$(_fsdpctl_options "$verb")
		[[ -z $verb ]] && options="--socket --json --help --version"
		COMPREPLY=($(compgen -W "$options" -- "$cur"))
		return
	fi
	case $verb in
	"") COMPREPLY=($(compgen -W "$verbs" -- "$cur")) ;;
	load | put | plan)
		compopt -o filenames
		COMPREPLY=($(compgen -f -- "$cur"))
		;;
	help) COMPREPLY=($(compgen -W "$verbs" -- "$cur")) ;;
	revoke)
		COMPREPLY=($(compgen -W "$(_fsdpctl_column tickets 1)" \
			-- "$cur"))
		;;
	log-level) COMPREPLY=($(compgen -W "error warning info" -- "$cur")) ;;
	ls | rm | stat | get | who | wait | watch)
		COMPREPLY=($(compgen -W "$(_fsdpctl_bundles "$cur")
			$(_fsdpctl_names "$cur")" -- "$cur"))
		;;
	groups) # the communicator, then one of its groups
		if [[ $prev == groups ]]; then
			COMPREPLY=($(compgen -W "$(_fsdpctl_column comms 1)" \
				-- "$cur"))
		else
			COMPREPLY=($(compgen -W \
				"$(_fsdpctl_column groups 2 "$prev")" -- "$cur"))
		fi
		;;
	esac
}

complete -F _fsdpctl fsdpctl
