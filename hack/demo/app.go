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

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// app answers for the pods of the demo: kwok's serve nothing.
type app struct {
	address netip.AddrPort
	// status code of its answers.
	status atomic.Int32
	server http.Server
	// dir is where the policy is written.
	dir string
}

// startApp starts it at an address of this machine that the operator takes for that
// of a pod; nil where there is none.
func startApp(ctx context.Context, dir string) *app {
	addresses, err := controlplane.PodAddresses(ctx)
	if err != nil {
		return nil
	}
	for _, ip := range addresses {
		if a := listen(ctx, dir, ip); a != nil {
			return a
		}
	}
	return nil
}

// listen starts it at an address, if it is to be reached there.
func listen(ctx context.Context, dir string, ip netip.Addr) *app {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(ip, 0).String())
	if err != nil {
		return nil
	}
	a := &app{dir: dir}
	a.status.Store(http.StatusOK)
	a.server.ReadHeaderTimeout = 5 * time.Second
	a.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(a.status.Load())) })
	a.address, err = netip.ParseAddrPort(l.Addr().String())
	go func() { _ = a.server.Serve(l) }()
	if err == nil {
		var c net.Conn
		if c, err = (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", a.address.String()); err == nil {
			_ = c.Close()
			return a
		}
	}
	_ = a.stop()
	return nil
}

func (a *app) stop() error {
	if a == nil {
		return nil
	}
	return a.server.Close()
}

// policy writes the policy that calls it, shows it, and returns where it is, below
// root.
func (a *app) policy(root string) (string, error) {
	text := fmt.Sprintf(`apiVersion: app.ops.cloud.alipay.com/v1alpha1
kind: DefensePolicy
metadata:
  name: %s
  namespace: %s
spec:
  checks:
  - name: smoke
    probe:
      http:
        port: %d
        path: /healthz
      interval: 1s
      successes: 3
      failures: 3
`, answers, shop, a.address.Port())
	path := filepath.Join(a.dir, answers+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", err
	}
	below, err := filepath.Rel(root, path)
	if err != nil {
		return "", err
	}
	fmt.Printf("\n$ cat %s\n%s", below, strings.TrimLeft(text, "\n"))
	return below, nil
}
