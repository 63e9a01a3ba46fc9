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
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// sandboxSpec is what a sandbox is told on its standard input.
type sandboxSpec struct {
	// Dir is the pod's directory on this machine: its root file system is mounted
	// there, and the socket it is reached by lies there.
	Dir string
	// Hostname is the name of the pod.
	Hostname string
	// IP is the pod's address, Network that of the Services' addresses.
	IP, Network netip.Addr
	// NetworkBits is the length of the prefix of Network.
	NetworkBits int
	// Services are the addresses that are reached through the socket Proxy.
	Services []netip.AddrPort
	Proxy    string
	// Mounts become the root file system, in this order.
	Mounts []mount
	// ReadOnly makes the root file system read-only.
	ReadOnly bool
	// UID and GID are who the process is; Args, Env and WorkingDir how it runs.
	UID, GID   int
	Args, Env  []string
	WorkingDir string
}

// mount is a file or directory of this machine in the root file system of a pod.
type mount struct {
	From, To string
	ReadOnly bool
	// File, if there is no From, is what the file To contains.
	File string
}

// socket is where a sandbox listens for connections to its pod.
func (s *sandboxSpec) socket() string { return filepath.Join(s.Dir, "pod.sock") }

// root is where the root file system of the pod is mounted.
func (s *sandboxSpec) root() string { return filepath.Join(s.Dir, "rootfs") }

// A connection to a socket begins with a line that says where it is to go, and
// is answered with a line that is empty or says what went wrong.

func dialSocket(ctx context.Context, socket, target string, timeout time.Duration) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: timeout}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_, err = fmt.Fprintln(conn, target)
	var answer string
	if err == nil {
		answer, err = readLine(conn)
	}
	if err == nil && answer != "" {
		err = fmt.Errorf("dial %s: %s", target, answer)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// serveSocket connects those who come to a listener with what dial returns for
// the target they name, until the listener is closed.
func serveSocket(ctx context.Context, l net.Listener, dial func(ctx context.Context, target string) (net.Conn, error)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			target, err := readLine(conn)
			if err != nil {
				return
			}
			to, err := dial(ctx, target)
			if err != nil {
				_, _ = fmt.Fprintln(conn, strings.ReplaceAll(err.Error(), "\n", " "))
				return
			}
			defer to.Close()
			if _, err := fmt.Fprintln(conn); err == nil {
				splice(conn, to)
			}
		}()
	}
}

// readLine reads a line byte by byte, since what follows is not ours.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < 1024; {
		if _, err := io.ReadFull(r, one); err != nil {
			return "", err
		}
		if one[0] == '\n' {
			return string(line), nil
		}
		line = append(line, one[0])
	}
	return "", bufio.ErrTooLong
}

// splice copies both ways until both are done. An end in one direction is passed
// on; an error ends both.
func splice(a, b net.Conn) {
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
			return
		}
		_ = a.Close()
		_ = b.Close()
	}
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
}

// decodeSpec reads what a sandbox is told.
func decodeSpec(r io.Reader) (*sandboxSpec, error) {
	var s sandboxSpec
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	return &s, nil
}
