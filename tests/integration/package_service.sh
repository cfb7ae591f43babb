#!/bin/bash
# Tests the Debian packages under a booted systemd, as an administrator uses
# them. After the installation the broker runs. After an upgrade it has its
# tensors, and readers were not disturbed. Services that were disabled stay
# disabled, and a purge leaves nothing.
#
#   package_service.sh BUILD_DIRECTORY PACKAGES
build=$(realpath "$1")
packages=$(realpath "$2")
# shellcheck source=tests/integration/boot_lib.sh
. "$(dirname "$(realpath "$0")")/boot_lib.sh"
# dpkg is slow on a busy machine.
HANG_SECONDS=1200

readme=$(dirname "$(realpath "$0")")/../../README.md

install_build()
{
	# This machine may have a policy that keeps packages from starting
	# services.
	rm -f "$root/usr/sbin/policy-rc.d"
	mkdir "$root/srv/packages" "$root/srv/newer" "$root/srv/foreign" &&
		cp "$packages"/*.deb "$root/srv/packages" &&
		newer_packages newer +1 append_to &&
		newer_packages foreign +2 give_another_layout
}

append_to()
{
	echo "another build" >>"$1"
}

give_another_layout()
{
	printf '#!/bin/sh\necho "catalog layout 99"\n' >"$1"
}

# newer_packages FOLDER SUFFIX CHANGE: make the same packages with a higher
# version, and let CHANGE change the program.
newer_packages()
{
	local package tree=$dir/tree version

	for package in "$packages"/*.deb; do
		version=$(dpkg-deb -f "$package" Version)
		dpkg-deb -R "$package" "$tree" || return
		sed -i -e "/^Version:/s/\$/$2/" -e "s/(= $version)/(= $version$2)/g" \
			"$tree/DEBIAN/control"
		[[ ! -e $tree/usr/bin/fsdpd ]] || "$3" "$tree/usr/bin/fsdpd"
		dpkg-deb --root-owner-group -b "$tree" "$root/srv/$1" || return
		rm -rf "$tree"
	done
}

# List files with our name in folders of packages and their scripts.
ours()
{
	inside find /etc /opt /usr /var /run -xdev -name '*fsdp*' \
		-not -path '/run/systemd/*' | sort
}

quietly()
{
	inside env DEBIAN_FRONTEND=noninteractive "$@" >"$dir/log" 2>&1 || {
		cat "$dir/log"
		return 1
	}
}

install_packages()
{
	quietly sh -c "apt-get -q -y --allow-downgrades \
		--no-install-recommends install /srv/$1/*.deb"
}

no_process_runs()
{
	! inside pgrep -x 'fsdpd|fsdp-.*'
}

user_exists()
{
	inside getent passwd fsdpd >/dev/null
}

installs()
{
	check "apt-get install" install_packages packages
	check "the broker runs" inside systemctl is-active --quiet fsdpd.service
	check "it starts at the next boot, too" inside systemctl is-enabled \
		--quiet fsdpd.service fsdpd.socket
	check "an ordinary user publishes a tensor" put node/t
	check "it runs as a user of its own" test \
		"$(inside stat -c %U:%G "/proc/$(main_pid)")" = fsdpd:fsdpd
	check "no exporter was started" \
		eval '! inside systemctl is-active --quiet fsdp-exporter'
	check "its configuration is there" inside test -s /etc/fsdpd/fsdpd.conf
	check "the broker can read it" quietly fsdpd --check-config
}

# Compile README's first program with the compiler of this machine.
program_builds()
{
	awk '/^```c$/ { inside = 1; next } /^```/ { if (inside) exit }
		inside' "$readme" >"$root/srv/program.c"
	inside sh -c 'cc -o /srv/program /srv/program.c \
		$(pkg-config --cflags --libs fsdp)'
}

# Use the system's Python, in a folder from which it imports nothing.
python_publishes()
{
	as_user sh -c 'cd /opt && exec /usr/bin/python3 -c "
import fsdp
fsdp.connect().put(\"node/python\", [1.0, 2.0])
assert fsdp.__file__.startswith(\"/usr/lib/python3/dist-packages/\")
"' && [[ $(as_user fsdpctl get node/python -o - | od -An -tf8 | xargs) == "1 2" ]]
}

new_program_runs()
{
	inside grep -q "another build" /usr/bin/fsdpd &&
		inside cmp "/proc/$(main_pid)/exe" /usr/bin/fsdpd
}

exporter_pid()
{
	inside systemctl show -p MainPID --value fsdp-exporter
}

upgrades()
{
	local exporter

	check "the exporter is enabled" inside systemctl enable --quiet --now \
		fsdp-exporter
	exporter=$(exporter_pid)
	start_reader
	goes_on "an upgrade" install_packages newer
	check "the new program runs" new_program_runs
	check "the exporter was started again" test "$(exporter_pid)" \
		-ne "$exporter" -a "$(exporter_pid)" -ne 0
	keeps_tensors_of_another_layout
	stop_reader
}

# dpkg gives up the removal of fsdp-tools, because a script of it fails at its
# end.
removal_fails()
{
	local prerm=/var/lib/dpkg/info/fsdp-tools.prerm

	inside sh -c "echo exit 1 >>$prerm" || return
	! inside dpkg --remove --force-depends fsdp-tools >"$dir/log" 2>&1 &&
		inside sed -i '$d' $prerm
}

survives_a_failed_removal()
{
	local exporter

	exporter=$(exporter_pid)
	check "a removal fails" removal_fails
	check "the exporter was stopped and started again" test \
		"$(exporter_pid)" -ne "$exporter" -a "$(exporter_pid)" -ne 0
	check "the exporter is disabled" inside systemctl disable --quiet \
		--now fsdp-exporter
	check "a removal fails again" removal_fails
	check "the exporter does not run" test "$(exporter_pid)" = 0
	check "the exporter is enabled again" inside systemctl enable --quiet \
		--now fsdp-exporter
}

# A version that cannot take the tensors over does not replace the broker.
keeps_tensors_of_another_layout()
{
	local before

	before=$(main_pid)
	check "a version with another layout is installed" \
		install_packages foreign
	check "apt says that the broker was not restarted" \
		grep -q "fsdpd: The earlier version still runs" "$dir/log"
	check "the earlier one runs" test "$(main_pid)" = "$before"
	check "the tensor is there" tensor_is_there
	check "the reader runs" kill -0 "$reader"
	check "the version before is installed again" install_packages newer
}

stays_disabled()
{
	check "the broker is disabled" inside systemctl disable --quiet --now \
		fsdpd.service fsdpd.socket
	check "the packages are installed again" quietly sh -c \
		'dpkg -i /srv/newer/*.deb'
	check "it is disabled still" eval '! inside systemctl is-enabled \
		--quiet fsdpd.service'
	check "and does not run" test "$(main_pid)" = 0
	check "it is enabled" inside systemctl enable --quiet --now \
		fsdpd.service
}

leaves()
{
	mkdir -p "$root/etc/fsdpd/fsdpd.conf.d"
	echo "[memory]" >"$root/etc/fsdpd/fsdpd.conf.d/site.conf"
	check "apt-get remove" quietly apt-get -q -y remove fsdpd
	check "its configuration stays" inside test -e \
		/etc/fsdpd/fsdpd.conf.d/site.conf
	check "the broker has ended" test "$(main_pid)" = 0
	check "apt-get purge" quietly apt-get -q -y purge fsdpd fsdp-tools \
		libfsdp-dev libfsdp0 python3-fsdp
	check "no process is left" no_process_runs
	check "no file is left" test "$(ours)" = "$before"
	check "nor is the user" eval '! user_exists'
}

boot
before=$(ours)
installs
check "README's program builds" program_builds
check "Python publishes a tensor" python_publishes
upgrades
survives_a_failed_removal
stays_disabled
leaves
