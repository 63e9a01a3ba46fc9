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
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/slots"
)

// newService is an endpoint of type HTTP at a test server.
func newService(t *testing.T, url string) *scene {
	s := newScene(t, url)
	s.e.Spec.Type = v1alpha1.EndpointHTTP
	return s
}

func (s *scene) post(id string, body []byte) (Answer, error) {
	s.Helper()
	if s.clients == nil {
		s.clients = NewClients(fake.NewClientBuilder().WithObjects(s.secrets...).Build(), s.clock, Guarded(s.guard))
	}
	return s.clients.Post(s.Context(), s.e, slots.Work{Namespace: "shop"}, id, body, 5*time.Second)
}

const signingKey = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestSigned: requests are signed as in the example of the libraries of Standard Webhooks.
func TestSigned(t *testing.T) {
	var got http.Header
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = r.Header
		body, _ = io.ReadAll(r.Body)
	}))
	defer server.Close()
	payload := []byte(`{"test": 2432232314}`)
	for name, test := range map[string]struct {
		secret           map[string]string
		signature, login string
	}{
		"a key": {map[string]string{"signingKey": signingKey + "\n"}, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", ""},
		"a key without its prefix": {
			map[string]string{"signingKey": strings.TrimPrefix(signingKey, "whsec_")}, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "",
		},
		"a key and a token": {
			map[string]string{"signingKey": signingKey, "token": "a"}, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "Bearer a",
		},
		"a token": {map[string]string{"token": "a"}, "", "Bearer a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, server.URL)
			s.clock.SetTime(time.Unix(1614265330, 0))
			s.e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "login"}}
			s.secret("login", true, test.secret)
			if _, err := s.post("msg_p5jXN8AQM9LWM0D4loKWxJek", payload); err != nil || string(body) != string(payload) {
				t.Fatal(string(body), err)
			}
			if got.Get("Webhook-Signature") != test.signature || got.Get("Webhook-Timestamp") != "1614265330" ||
				got.Get("Authorization") != test.login || got.Get("Content-Type") != "application/json" {
				t.Errorf("header %v", got)
			}
		})
	}
	for name, secret := range map[string]map[string]string{
		"no base64": {"signingKey": "whsec_*"}, "too short": {"signingKey": "YWJj"}, "too long": {"signingKey": strings.Repeat("YWJj", 22)},
		"none": {"other": "a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, server.URL)
			s.e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "login"}}
			s.secret("login", true, secret)
			var failed *Error
			if _, err := s.post("a", nil); !errors.As(err, &failed) || failed.Reason != v1alpha1.ReasonCredentials ||
				!strings.Contains(failed.Message, "signingKey") {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("a Prometheus", func(t *testing.T) { // it would not be signed
		s := newScene(t, server.URL)
		s.e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "login"}}
		s.secret("login", true, map[string]string{"signingKey": signingKey})
		s.fails(v1alpha1.ReasonCredentials, "has neither the key token, nor the keys username and password")
	})
}

// TestReachHTTP: an endpoint is reachable if it answers HEAD, unless calls show that it fails.
func TestReachHTTP(t *testing.T) {
	var head, post atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := &post
		if r.Method == http.MethodHead {
			status = &head
		}
		w.Header().Set("Location", "/other")
		w.WriteHeader(int(status.Load()))
	}))
	defer server.Close()
	for status, want := range map[int32]string{
		200: "", 404: "", 405: "", 501: "", 302: "it redirects (HTTP 302)", 401: "refuses the credentials", 403: "refuses the credentials",
		429: "HTTP 429", 500: "it answers HTTP 500", 503: "it answers HTTP 503",
	} {
		head.Store(status)
		err := newServiceClients(t, server.URL).reach()
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want)) {
			t.Errorf("%d: error %v, want %q", status, err, want)
		}
		if failed := (*Error)(nil); errors.As(err, &failed) && failed.Reason != v1alpha1.ReasonUnavailable {
			t.Errorf("%d: reason %s", status, failed.Reason)
		}
	}
	s := newServiceClients(t, server.URL)
	head.Store(405)
	reach := func(want bool) {
		t.Helper()
		if err := s.reach(); (err == nil) != want {
			t.Errorf("error %v", err)
		}
	}
	call := func(status int32) {
		post.Store(status)
		_, _ = s.post("a", nil) // Reach says whether it failed
	}
	call(500)
	reach(false)
	call(422)
	reach(true)
	call(500)
	s.clock.SetTime(s.clock.Now().Add(4 * time.Minute))
	reach(false)
	s.clock.SetTime(s.clock.Now().Add(2 * time.Minute)) // the failure is too old to count
	reach(true)
	server.Close()
	reach(false)
}

func newServiceClients(t *testing.T, url string) *scene {
	s := newService(t, url)
	s.clients = NewClients(fake.NewClientBuilder().Build(), s.clock, Guarded(s.guard))
	return s
}

func (s *scene) reach() error { return s.clients.Reach(s.Context(), s.e) }
