"""What surrounds a slot: namespaces, a private read-only root, an own uid, the system-call filter.

| tier | what holds a program |
|---|---|
| A-root | pid, mount, net, ipc, uts namespaces; read-only root; own uid; seccomp; rlimits |
| A-user | the same inside a user namespace, no own uid, no capabilities |
| B | no namespaces: seccomp without new processes, Landlock, own uid where root, rlimits |
| C | for a kernel that is itself a sandbox (gVisor): pid namespace, own uid, seccomp, rlimits, and
      what else of A it has |
| D | as B without what this machine lacks of seccomp and Landlock: development |

A slot tries the tier that it is told and reports OSError; the supervisor goes down the list. All of
this runs in the slot's own process, before any program does.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
import time

from sandbox_service import linux, seccomp
from sandbox_service.lean import Any, signal, suppress

TIERS = ("A-root", "A-user", "B", "C", "D")
_RULES_FD = 32  # above the numbers that a child fills before it needs the rules
_INNER_UID = 1000  # uid inside a user namespace: not 0, so exec never brings capabilities back


def is_at_least(tier: str, minimum: str) -> bool:
    """Whether `tier` is as strong as `minimum`; "A" means any tier A."""
    order = {"A": 1, "A-root": 1, "A-user": 1, "B": 2, "C": 3, "D": 4}
    return order[tier] <= order[minimum]


class Cage:
    """Isolation of one slot. `enter` once, then `become_child` in each child, `clean` after it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.tier: str = config["tier"]
        self.uid: int = config["uid"]
        self.tmp_options = f"size={config['tmp_bytes']},nr_inodes={config['tmp_inodes']},mode=1777"
        self.tmp_bytes: int = config["tmp_bytes"]
        self.scratch: str = config["scratch"]
        self.folders: list[str] = config["folders"]  # of packages, readable for programs
        self.has_pid_namespace = self.tier in ("A-root", "A-user", "C")
        self.has_private_root = False
        self.has_own_uid = False
        self._groups: list[str] = config["groups"]
        self._has_user_namespace = False
        self._has_own_proc = False
        self._host_uid = os.getuid()
        self.notes: list[str] = []
        self._has_child_filter = False
        self._rules = -1
        self._tmp_marks: tuple[int, ...] = ()

    def unshare(self) -> None:
        """First half, in the parent of the slot: what must exist before the slot is forked."""
        if self.tier in ("A-root", "A-user", "B") and not linux.has_pidfd():
            raise OSError(38, "the kernel has no pidfd_open: gVisor (tier C), or before Linux 5.3")
        for path in self._groups:
            # Version 1 has `tasks`: to move a lone thread the kernel need not stop all forks first.
            name = "tasks" if os.path.exists(f"{path}/tasks") else "cgroup.procs"
            try:
                with open(f"{path}/{name}", "w") as file:
                    file.write("0")
            except OSError as error:
                self.notes.append(f"control group not joined: {error}")
        if not self.has_pid_namespace:
            return
        self._has_user_namespace = self.tier == "A-user" or os.getuid() != 0
        if not self._has_user_namespace:
            os.unshare(linux.CLONE_NEWPID)
            return
        uid, gid = os.getuid(), os.getgid()
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # else the files below belong to root
        os.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{_INNER_UID} {uid} 1"),
            ("gid_map", f"{_INNER_UID} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)

    def enter(self, limits: dict[str, int]) -> None:
        """Second half, in the slot: raises OSError if the tier cannot be had here."""
        if self.has_pid_namespace:
            self._unshare_rest()
            self.has_own_uid = not self._has_user_namespace
        else:
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
            self._choose_uid()
        if not self.has_private_root:
            os.makedirs(self.scratch, mode=0o700, exist_ok=True)
            if self.has_own_uid:
                os.chown(self.scratch, self.uid, self.uid)
        if self.has_own_uid:
            os.setgroups([])
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if memory runs out, the host should lose a run and nothing else
        for name, value in limits.items():
            if name == "NPROC" and not (self.has_own_uid or self._has_user_namespace):
                # Counted over all processes of the user who runs the service: its own threads
                # would use it up and the slot could not fork. The filter allows threads only.
                continue
            try:
                _limit(getattr(resource, f"RLIMIT_{name}"), value)
            except (OSError, ValueError) as error:
                if self.tier not in ("C", "D"):
                    raise OSError(22, f"RLIMIT_{name}: {error}") from None
                self.notes.append(f"RLIMIT_{name}: {error}")
        self._attach_filter()
        if not self.has_pid_namespace:
            self._make_rules()

    def _unshare_rest(self) -> None:
        rest = linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
        if self.tier != "C":
            os.unshare(linux.CLONE_NEWNS | rest)
            with suppress(OSError):  # only hides names
                os.unshare(linux.CLONE_NEWCGROUP)
            self._enter_private_root()
            return
        for flag in (linux.CLONE_NEWNET, linux.CLONE_NEWIPC, linux.CLONE_NEWUTS):
            try:
                os.unshare(flag)
            except OSError as error:
                self.notes.append(f"namespace {flag:#x}: {error}")
        os.unshare(linux.CLONE_NEWNS)
        try:
            self._enter_private_root()
        except OSError as error:
            self.notes.append(f"no private root: {error}")
            os.chdir("/")
            self._mount_proc("/proc")

    def _enter_private_root(self) -> None:
        if sys.base_prefix.startswith("/tmp/"):
            raise OSError(
                22, f"the interpreter is under /tmp ({sys.base_prefix}); programs get a /tmp"
            )
        try:
            linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        except OSError as error:
            if self.tier != "C" or error.errno != errno.EINVAL:
                raise  # gVisor has no shared mounts that would have to be made private
        # Any folder of the host will do: the mount is seen in this namespace only.
        new_root = next(p for p in ("/sys", "/mnt", "/tmp") if os.path.isdir(p))
        linux.mount("cage", new_root, "tmpfs", linux.MS_NOSUID, "size=1m,mode=755")
        for path in [*_host_folders(), *self.folders]:
            _bind_read_only(path, new_root + path)
        for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
            if os.path.islink(path):
                os.symlink(os.readlink(path), new_root + path)
        os.makedirs(new_root + "/etc")
        for path in ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives"):
            if os.path.exists(path):
                with suppress(OSError):
                    _bind_read_only(os.path.realpath(path), new_root + path)
        os.makedirs(new_root + "/dev")
        for name in ("null", "zero", "full", "random", "urandom"):
            open(f"{new_root}/dev/{name}", "w").close()
            linux.mount(f"/dev/{name}", f"{new_root}/dev/{name}", None, linux.MS_BIND)
        os.symlink("/tmp", f"{new_root}/dev/shm")
        os.symlink("/proc/self/fd", f"{new_root}/dev/fd")
        os.makedirs(f"{new_root}/tmp")
        os.makedirs(f"{new_root}/proc")
        self._mount_proc(f"{new_root}/proc")
        os.chdir(new_root)
        linux.pivot_root_here()
        flags = linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID
        linux.mount("none", "/", None, flags, "size=1m,mode=755")
        self._mount_tmp()
        self.has_private_root = True

    def _mount_proc(self, target: str) -> None:
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        # Processes only: what else is in /proc acts on the host, and in a user namespace that root
        # made, programs have root's number for it. The second choice is for Linux before 5.8.
        # In a user namespace hidepid would hide them from the slot as well, which counts them.
        if self._has_user_namespace:
            choices = ["subset=pid"] if self._host_uid == 0 else ["subset=pid", ""]
        else:
            choices = ["hidepid=2,subset=pid", "hidepid=2"]
        if self.tier == "C":
            choices.append("")
        for options in choices:
            try:
                linux.mount("proc", target, "proc", flags, options)
                self._has_own_proc = True
                return
            except OSError as error:
                # Never the host's: without /proc a slot still runs, it only measures less.
                reason = str(error)
        self.notes.append(f"no /proc inside: {reason}")

    def _mount_tmp(self) -> None:
        linux.mount("tmp", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, self.tmp_options)
        self._tmp_marks = _marks(os.stat("/tmp"))

    def _choose_uid(self) -> None:
        if os.getuid() != 0:
            return
        # Programs never run as root where they see the host's files, whatever the tier.
        if not _is_world_readable(os.__file__):
            raise OSError(1, f"an own uid could not read the standard library ({os.__file__})")
        self.has_own_uid = True

    def _attach_filter(self) -> None:
        program = seccomp.denylist()
        try:
            if not program:
                raise OSError(38, f"seccomp: no table for {os.uname().machine}")
            linux.set_seccomp_filter(program)
            self._has_child_filter = not self.has_pid_namespace
        except OSError as error:
            if self.tier != "D":
                raise
            self.notes.append(str(error))

    def _make_rules(self) -> None:
        """Files that a program may see where it shares the host's: the interpreter, its scratch."""
        readable = [
            *_host_folders(),
            *self.folders,
            "/dev/urandom",
            "/dev/random",
            "/dev/zero",
            "/proc/self",
        ]
        readable += [p for p in ("/etc/ld.so.cache", "/etc/localtime") if os.path.exists(p)]
        try:
            rules = linux.landlock_rules(["/proc"], readable, [self.scratch, "/dev/null"])
            self._rules = os.dup2(rules, _RULES_FD, inheritable=False)
            os.close(rules)
        except OSError as error:
            if self.tier == "B" and not self.has_own_uid:
                raise  # programs could change every file of the user who runs the service
            self.notes.append(str(error))

    def become_child(self) -> None:
        """In the child: own uid, no capabilities, the scratch folder as working directory."""
        if self._rules >= 0:
            linux.landlock_restrict(self._rules)
        if self.has_own_uid:
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        elif self._has_user_namespace:
            linux.drop_capabilities()
        if not self.has_pid_namespace:
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if self._has_child_filter:
            linux.set_seccomp_filter(seccomp.alone(os.getpid()))
        os.chdir("/tmp" if self.has_private_root else self.scratch)

    def clean(self) -> None:
        """After a run: every process of it is gone and so is what it wrote."""
        self._kill_all()
        if not self.has_private_root:
            _restore_folder(self.scratch)
            _empty_folder(self.scratch)
            return
        usage = os.statvfs("/tmp")
        is_used = usage.f_files - usage.f_ffree > 1 or usage.f_bfree < usage.f_blocks
        if is_used or _marks(os.stat("/tmp")) != self._tmp_marks:
            linux.unmount("/tmp", linux.MNT_DETACH)
            self._mount_tmp()

    def _kill_all(self) -> None:
        if self.has_pid_namespace:
            try:
                os.waitpid(-1, os.WNOHANG)  # orphans are children of pid 1: if none, all are gone
                while True:
                    # Again after each that went: not every kernel (gVisor) stops those that fork.
                    with suppress(ProcessLookupError):
                        os.kill(-1, signal.SIGKILL)
                    os.waitpid(-1, 0)
            except ChildProcessError:
                return
        while self._kill_descendants():
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def _kill_descendants(self) -> bool:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                pids = [int(pid) for pid in file.read().split()]
        except OSError:
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            return False
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def usage(self) -> tuple[float, int, int]:
        """CPU seconds, resident bytes and number of all processes of the run (not the slot).

        Raises OSError where there is no /proc of the slot's own processes.
        """
        if self.has_pid_namespace and not self._has_own_proc:
            raise OSError(2, "no /proc")
        tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        slot = os.getpid()
        rows: dict[int, tuple[int, float, int]] = {}
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == slot:
                continue
            with suppress(OSError, IndexError, ValueError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                own, ended = [sum(map(int, fields[at : at + 2])) / tick for at in (11, 13)]
                # Ticks are rounded down for each process: 32 of them hide half a second.
                with suppress(OSError):
                    own = time.clock_gettime(linux.cpu_clock(int(name)))
                rows[int(name)] = (int(fields[1]), own + ended, int(fields[21]))
        if not self.has_pid_namespace:
            rows = {pid: row for pid, row in rows.items() if _descends(pid, slot, rows)}
        used_s = sum(row[1] for row in rows.values())
        return used_s, sum(row[2] for row in rows.values()) * page, len(rows)


def _descends(pid: int, ancestor: int, rows: dict[int, tuple[int, float, int]]) -> bool:
    for _ in range(64):
        if pid not in rows:
            return False
        pid = rows[pid][0]
        if pid == ancestor:
            return True
    return False


def _limit(which: int, wanted: int) -> None:
    """Sets soft and hard limit to the wanted value or the hard limit, whichever is lower."""
    hard = resource.getrlimit(which)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (value, value))


def _host_folders() -> list[str]:
    """Folders that a Python program needs: system libraries and this interpreter."""
    folders = [p for p in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
               if os.path.isdir(p) and not os.path.islink(p)]  # fmt: skip
    for path in {sys.base_prefix, sys.base_exec_prefix}:
        if not any(path == folder or path.startswith(folder + "/") for folder in folders):
            folders.append(path)
    return folders


def _bind_read_only(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    linux.mount(source, target, None, linux.MS_BIND)
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    try:
        linux.mount("none", target, None, flags)
    except OSError:
        # Inside a user namespace the flags that the host set on the mount must be kept.
        host = os.statvfs(source).f_flag
        flags |= host & (linux.MS_NOEXEC | 0x400 | 0x800 | 0x1000)
        linux.mount("none", target, None, flags)


def _is_world_readable(path: str) -> bool:
    while path != "/":
        mode = os.stat(path).st_mode
        if not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
            return False
        path = os.path.dirname(path)
    return True


def _marks(status: os.stat_result) -> tuple[int, ...]:
    """What the owner of a folder can change of it without leaving anything inside."""
    times = status.st_mtime_ns, status.st_atime_ns, status.st_ctime_ns
    return status.st_mode, status.st_uid, status.st_gid, *times


def _restore_folder(path: str) -> None:
    """Takes from a folder what its owner may have left on itself: rights, times, attributes."""
    os.chmod(path, 0o700)
    for name in os.listxattr(path):
        os.removexattr(path, name)
    os.utime(path, (0, 0))


def _empty_folder(path: str) -> None:
    """Empties a folder without following links and whatever the depth: by descriptor, iteratively.

    A folder found inside is moved up to the top before it is entered, so no path grows long.
    """
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        serial = 0
        while names := os.listdir(top):
            for name in names:
                try:
                    os.unlink(name, dir_fd=top)
                    continue
                except OSError:
                    pass
                with suppress(OSError):
                    os.chmod(name, 0o700, dir_fd=top, follow_symlinks=True)
                serial = _lift_folders(top, name, serial)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _lift_folders(top: int, name: str, serial: int) -> int:
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for inner in os.listdir(folder):
            try:
                os.unlink(inner, dir_fd=folder)
            except OSError:
                serial += 1
                os.rename(inner, f".lifted-{serial}", src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    return serial
