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

package endpoint

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// alertmanager is an endpoint whose host has several addresses, all of one server.
func alertmanager(t *testing.T, server *httptest.Server, addresses ...string) *scene {
	t.Helper()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	scheme, _, _ := strings.Cut(server.URL, ":")
	s := newScene(t, scheme+"://example.com:"+port+"/am")
	s.e.Spec.Type = v1alpha1.EndpointAlertmanager
	s.prepare().resolve = func(_ context.Context, _, host string) (found []netip.Addr, _ error) {
		if host != "example.com" {
			t.Errorf("host %q is resolved", host)
		}
		for _, a := range addresses {
			found = append(found, netip.MustParseAddr(a))
		}
		return found, nil
	}
	return s
}

func TestSend(t *testing.T) {
	for name, test := range map[string]struct {
		status    int
		kind      string
		addresses []string
		guard     func(address string) error
		calls     int
		reason    string
		message   string
	}{
		"taken": {status: 200, addresses: []string{"127.0.0.1"}, calls: 1},
		// Nothing listens at the second address: the server is bound to one.
		"one of two is down":       {status: 200, addresses: []string{"127.0.0.2", "127.0.0.1"}, calls: 1},
		"one of two has no access": {status: 200, addresses: []string{"127.0.0.1", "127.0.0.3"}, guard: refuse("127.0.0.3"), calls: 1},
		"an address twice, mapped to IPv6 once": {
			status: 200, addresses: []string{"127.0.0.1", "::ffff:127.0.0.1"}, calls: 2,
		},
		"down": {status: 200, addresses: []string{"127.0.0.2"}, reason: v1alpha1.ReasonUnavailable, message: "it refuses connections"},
		"no address": {
			status: 200, reason: v1alpha1.ReasonUnavailable, message: "it cannot be called",
		},
		"guarded": {
			status: 200, addresses: []string{"127.0.0.1"}, guard: refuse("127.0.0.1"),
			reason: v1alpha1.ReasonUnavailable, message: "its address may not be called",
		},
		"bad alerts": {
			status: 400, addresses: []string{"127.0.0.1"}, calls: 1, reason: v1alpha1.ReasonQueryFailed, message: "it refuses the alerts",
		},
		"no credentials": {
			status: 401, addresses: []string{"127.0.0.1"}, calls: 1, reason: v1alpha1.ReasonUnavailable, message: "it refuses the credentials",
		},
		"a redirect": {status: 302, addresses: []string{"127.0.0.1"}, calls: 1, reason: v1alpha1.ReasonUnavailable, message: "it redirects"},
		"another path": {
			status: 404, addresses: []string{"127.0.0.1"}, calls: 1, reason: v1alpha1.ReasonUnavailable, message: "is it an Alertmanager",
		},
		"a login page": {
			status: 200, kind: "text/html; charset=utf-8", addresses: []string{"127.0.0.1"}, calls: 1,
			reason: v1alpha1.ReasonUnavailable, message: "is it an Alertmanager",
		},
		"too many": {status: 429, addresses: []string{"127.0.0.1"}, calls: 1, reason: v1alpha1.ReasonUnavailable, message: "lower limits.qps"},
		"an error": {status: 503, addresses: []string{"127.0.0.1"}, calls: 1, reason: v1alpha1.ReasonUnavailable, message: "it answers HTTP 503"},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var got []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				host, _, _ := strings.Cut(r.Host, ":")
				got = append(got, strings.Join([]string{r.Method, host, r.URL.Path, r.Header.Get("Content-Type"), string(body)}, " "))
				if test.kind != "" {
					w.Header().Set("Content-Type", test.kind)
				}
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(test.status)
			}))
			defer server.Close()
			s := alertmanager(t, server, test.addresses...)
			if test.guard != nil {
				s.clients.dial = Guarded(func(_ context.Context, _, address string, _ syscall.RawConn) error { return test.guard(address) })
			}
			err := s.clients.Send(t.Context(), s.e, []byte(`[{}]`))
			var failed *Error
			if errors.As(err, &failed) != (test.reason != "") || failed != nil &&
				(failed.Reason != test.reason || !strings.Contains(failed.Message, test.message)) {
				t.Errorf("error %#v, want %s: %s", err, test.reason, test.message)
			}
			var want []string
			for range test.calls {
				want = append(want, "POST example.com /am/api/v2/alerts application/json [{}]")
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func refuse(ip string) func(string) error {
	return func(address string) error {
		if strings.HasPrefix(address, ip+":") {
			return errors.New("no")
		}
		return nil
	}
}

// TestSendTLS: the certificate has the name of the host, and not its address. An endpoint is reachable if it takes an
// empty list of alerts with the credentials.
func TestSendTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "am" || password != "s3cret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for name, test := range map[string]struct{ serverName, password, message string }{
		"the name of the host": {password: "s3cret"},
		"another name":         {serverName: "other.test", password: "s3cret", message: "its certificate is for another name"},
		"another password":     {password: "wrong", message: "it refuses the credentials"},
	} {
		s := newScene(t, "")
		s.secret("login", true, map[string]string{"username": "am", "password": test.password})
		s.secret("ca", true, map[string]string{"ca.crt": authority})
		of := alertmanager(t, server, "127.0.0.1")
		s.e.Spec.URL, s.e.Spec.Type = of.e.Spec.URL, v1alpha1.EndpointAlertmanager
		s.e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "login"}}
		s.e.Spec.TLS = &v1alpha1.EndpointTLS{CASecretRef: &v1alpha1.SecretReference{Name: "ca"}, ServerName: test.serverName}
		s.prepare().resolve = of.clients.resolve
		err := s.clients.Reach(t.Context(), s.e)
		if (err == nil) != (test.message == "") || err != nil && (!strings.Contains(err.Error(), test.message) ||
			strings.Contains(err.Error(), test.password)) {
			t.Errorf("%s: %v, want %q", name, err, test.message)
		}
	}
}
