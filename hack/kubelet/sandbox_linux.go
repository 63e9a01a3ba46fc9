/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// sandboxName is the name this program is run under to be a sandbox.
const sandboxName = "altershield-pod-sandbox"

// A program that uses this package is its own sandbox: it runs itself under
// another name. So no second program has to be built and found.
func init() {
	if os.Args[0] != sandboxName {
		return
	}
	// Children are killed with the thread that started them.
	runtime.LockOSThread()
	code, err := runSandbox()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		code = 128
	}
	os.Exit(code)
}

// sandboxCmd is a command that runs a sandbox in namespaces of its own; its
// standard input takes the specification. No privileges are needed where users
// may make user namespaces.
func sandboxCmd() (*exec.Cmd, *syscall.SysProcAttr, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self) //nolint:noctx // lives longer than any context: its kubelet ends it
	cmd.Args = []string{sandboxName}
	return cmd, &syscall.SysProcAttr{
		Setpgid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}, nil
}

// runSandbox is a sandbox: it makes network and root file system of a pod, runs
// its process, and returns with what that returned.
func runSandbox() (int, error) {
	s, err := decodeSpec(os.Stdin)
	if err != nil {
		return 0, err
	}
	if err := syscall.Sethostname([]byte(s.Hostname)); err != nil {
		return 0, fmt.Errorf("set the host name: %w", err)
	}
	if err := s.network(); err != nil {
		return 0, err
	}
	if err := s.mount(); err != nil {
		return 0, err
	}
	// The socket is there before the process, as the pod's address is.
	_ = os.Remove(s.socket())
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", s.socket())
	if err != nil {
		return 0, err
	}
	// From here on other goroutines do the work of this network, which is not that
	// of the main thread.
	services := make(chan error)
	go func() { services <- s.serveServices() }()
	if err := <-services; err != nil {
		return 0, err
	}
	go serveSocket(context.Background(), l, func(ctx context.Context, port string) (net.Conn, error) {
		return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", net.JoinHostPort(s.IP.String(), port))
	})
	return s.run()
}

// The sandbox has two networks: this program's, where Services are, and the pod's.
// gateway is this program's address between the two.
var gateway = net.IPv4(169, 254, 1, 1)

// network makes the pod's network, with its address and a way to the other one,
// and moves the main thread there; all others stay.
func (s *sandboxSpec) network() error {
	outside, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return err
	}
	defer outside.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("a network of its own: %w", err)
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "eth0"
	err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "pod", PeerNamespace: netlink.NsFd(outside.Fd())})
	if err != nil {
		return fmt.Errorf("a pair of network interfaces: %w", err)
	}
	inside, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	there, err := netlink.NewHandleAt(netns.NsHandle(outside.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	ip := net.IP(s.IP.AsSlice())
	if err := errors.Join(
		up(inside, "lo", nil),
		up(inside, "eth0", host(ip)),
		// All addresses of a network on the loopback interface are local ones.
		up(there, "lo", &net.IPNet{IP: s.Network.AsSlice(), Mask: net.CIDRMask(s.NetworkBits, 32)}),
		up(there, "pod", host(gateway)),
	); err != nil {
		return err
	}
	return errors.Join(
		route(there, "pod", host(ip), nil),
		route(inside, "eth0", host(gateway), nil),
		route(inside, "eth0", nil, gateway),
	)
}

func host(ip net.IP) *net.IPNet { return &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)} }

// up gives a network interface an address and turns it on.
func up(at *netlink.Handle, name string, address *net.IPNet) error {
	link, err := at.LinkByName(name)
	if err == nil && address != nil {
		err = at.AddrAdd(link, &netlink.Addr{IPNet: address})
	}
	if err == nil {
		err = at.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("network interface %s: %w", name, err)
	}
	return nil
}

// route leads to addresses, or everywhere, through a network interface.
func route(at *netlink.Handle, name string, to *net.IPNet, via net.IP) error {
	link, err := at.LinkByName(name)
	if err == nil {
		r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: via}
		if via == nil {
			r.Scope = netlink.SCOPE_LINK
		}
		err = at.RouteAdd(r)
	}
	if err != nil {
		return fmt.Errorf("route through %s: %w", name, err)
	}
	return nil
}

// serveServices passes connections to Services on to who knows their endpoints.
func (s *sandboxSpec) serveServices() error {
	for _, service := range s.Services {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", service.String())
		if err != nil {
			return err
		}
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					to, err := dialSocket(context.Background(), s.Proxy, service.String(), 2*dialTimeout)
					if err != nil {
						// As close to a refusal as can be.
						if tcp, ok := conn.(*net.TCPConn); ok {
							_ = tcp.SetLinger(0)
						}
						return
					}
					defer to.Close()
					splice(conn, to)
				}()
			}
		}()
	}
	return nil
}

// mount makes the root file system: nothing is in it but what is mounted.
func (s *sandboxSpec) mount() error {
	root := s.root()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	if err := os.MkdirAll(root, 0o750); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount the root file system: %w", err)
	}
	for _, m := range s.Mounts {
		if err := m.into(root); err != nil {
			return fmt.Errorf("mount %s: %w", m.To, err)
		}
	}
	if s.ReadOnly {
		if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("make the root file system read-only: %w", err)
		}
	}
	return nil
}

func (m mount) into(root string) error {
	to := filepath.Join(root, m.To)
	dir, isDir := filepath.Dir(to), false
	if m.From != "" {
		info, err := os.Stat(m.From)
		if err != nil {
			return err
		}
		if isDir = info.IsDir(); isDir {
			dir = to
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if !isDir {
		if err := os.WriteFile(to, []byte(m.File), 0o644); err != nil {
			return err
		}
	}
	if m.From == "" {
		return nil
	}
	if err := unix.Mount(m.From, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if !m.ReadOnly {
		return nil
	}
	// Flags that the mount has may not be taken away.
	var has unix.Statfs_t
	if err := unix.Statfs(to, &has); err != nil {
		return err
	}
	keep := uintptr(has.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_RELATIME)
	return unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|keep, "")
}

// run runs the process, in a user namespace of its own where nobody is root,
// tells its id on descriptor 3, and passes signals on.
func (s *sandboxSpec) run() (int, error) {
	started := os.NewFile(3, "started")
	unix.CloseOnExec(3)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	cmd := exec.Command(s.Args[0], s.Args[1:]...) //nolint:noctx // ends by signals
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = s.Env, s.WorkingDir, os.Stdout, os.Stderr
	if !strings.HasPrefix(cmd.Path, "/") {
		return 0, fmt.Errorf("the command %s is no absolute path", cmd.Path)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Chroot: s.root(),
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: s.UID, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: s.GID, HostID: 0, Size: 1}},
		Credential:  &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.GID), NoSetGroups: true},
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	if _, err := started.WriteString(strconv.Itoa(cmd.Process.Pid) + "\n"); err != nil {
		return 0, err
	}
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig)
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
