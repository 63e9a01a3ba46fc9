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

package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"
)

func TestIssue(t *testing.T) {
	now := time.Now()
	ca, err := NewCA("test-ca", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.IssueServer("server", []string{"manager.example", "127.0.0.1"}, now, 100*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	client, err := ca.IssueClient("jane", []string{"sre"}, now, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.CertPEM) {
		t.Fatal("the authority's PEM cannot be read")
	}
	for name, test := range map[string]struct {
		cert  *x509.Certificate
		host  string
		usage x509.ExtKeyUsage
		at    time.Time
		fails bool
	}{
		"server by name":          {cert: server.Cert, host: "manager.example", usage: x509.ExtKeyUsageServerAuth, at: now},
		"server by address":       {cert: server.Cert, host: "127.0.0.1", usage: x509.ExtKeyUsageServerAuth, at: now},
		"server for another host": {cert: server.Cert, host: "other.example", usage: x509.ExtKeyUsageServerAuth, at: now, fails: true},
		"server is no client":     {cert: server.Cert, usage: x509.ExtKeyUsageClientAuth, at: now, fails: true},
		"client":                  {cert: client.Cert, usage: x509.ExtKeyUsageClientAuth, at: now},
		"client, expired":         {cert: client.Cert, usage: x509.ExtKeyUsageClientAuth, at: now.Add(2 * time.Minute), fails: true},
		"valid for clocks behind": {cert: client.Cert, usage: x509.ExtKeyUsageClientAuth, at: now.Add(-30 * time.Minute)},
		"no longer than its own issuer": {
			cert: server.Cert, host: "127.0.0.1", usage: x509.ExtKeyUsageServerAuth, at: now.Add(2 * time.Hour), fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := test.cert.Verify(x509.VerifyOptions{
				Roots: roots, DNSName: test.host, KeyUsages: []x509.ExtKeyUsage{test.usage}, CurrentTime: test.at,
			})
			if failed := err != nil; failed != test.fails {
				t.Errorf("verify: %v, want failure %t", err, test.fails)
			}
		})
	}
	if server.Cert.NotAfter.After(ca.Cert.NotAfter) {
		t.Errorf("certificate is valid until %s, its issuer until %s", server.Cert.NotAfter, ca.Cert.NotAfter)
	}
	if client.Cert.Subject.CommonName != "jane" || len(client.Cert.Subject.Organization) != 1 {
		t.Errorf("client is %s, want jane of one group", client.Cert.Subject)
	}
	if _, err := tls.X509KeyPair(server.CertPEM, server.KeyPEM); err != nil {
		t.Errorf("certificate and key do not fit: %v", err)
	}
}

func TestPair(t *testing.T) {
	now := time.Now()
	ca, err := NewCA("one", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewCA("other", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Pair(ca.Cert, ca.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.CertPEM, ca.CertPEM) || !bytes.Equal(again.KeyPEM, ca.KeyPEM) || !again.Key.Equal(ca.Key) {
		t.Error("the joined pair differs")
	}
	for name, key := range map[string][]byte{"another's": other.KeyPEM, "none": nil, "a certificate": ca.CertPEM} {
		if _, err := Pair(ca.Cert, key); err == nil {
			t.Errorf("the key is %s, and is taken", name)
		}
	}
}

func TestParseCertificates(t *testing.T) {
	now := time.Now()
	ca, err := NewCA("one", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	bundle := append([]byte("a note\n"), ca.CertPEM...)
	bundle = append(bundle, ca.KeyPEM...)
	bundle = append(bundle, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")...)
	bundle = append(bundle, ca.CertPEM...)
	certs := ParseCertificates(bundle)
	if len(certs) != 2 || !certs[0].Equal(ca.Cert) || !certs[1].Equal(ca.Cert) {
		t.Errorf("%d certificates", len(certs))
	}
	if !bytes.Equal(EncodeCertificate(certs[0]), ca.CertPEM) {
		t.Error("a certificate is encoded in another way")
	}
	if len(ParseCertificates(nil)) != 0 {
		t.Error("certificates of nothing")
	}
}
