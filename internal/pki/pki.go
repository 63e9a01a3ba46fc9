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

// Package pki makes certificate authorities and certificates.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// backdated is the time before its creation at which a certificate becomes valid, for clocks that differ.
const backdated = time.Hour

// KeyPair is a certificate with its private key.
type KeyPair struct {
	Key  *ecdsa.PrivateKey
	Cert *x509.Certificate
	// CertPEM and KeyPEM are the PEM encodings.
	CertPEM, KeyPEM []byte
}

// NewCA makes a certificate authority.
func NewCA(name string, now time.Time, validity time.Duration) (*KeyPair, error) {
	return issue(nil, x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, now, validity)
}

// IssueServer makes a serving certificate for host names and IP addresses. It expires with the authority at the latest.
func (ca *KeyPair) IssueServer(name string, hosts []string, now time.Time, validity time.Duration) (*KeyPair, error) {
	template := x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return issue(ca, template, now, validity)
}

// IssueClient makes a client certificate of a user with groups.
func (ca *KeyPair) IssueClient(user string, groups []string, now time.Time, validity time.Duration) (*KeyPair, error) {
	return issue(ca, x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, now, validity)
}

// Pair joins a certificate with its private key. A key of another certificate is an error.
func Pair(cert *x509.Certificate, keyPEM []byte) (*KeyPair, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, errors.New("the key is not PEM")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("the key does not belong to %s", cert.Subject.CommonName)
	}
	return &KeyPair{Key: key, Cert: cert, CertPEM: EncodeCertificate(cert), KeyPEM: keyPEM}, nil
}

// EncodeCertificate encodes a certificate in PEM.
func EncodeCertificate(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

// ParseCertificates reads the certificates of a bundle in PEM, and skips everything else.
func ParseCertificates(bundle []byte) []*x509.Certificate {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); block.Type == "CERTIFICATE" && err == nil {
			certs = append(certs, cert)
		}
	}
	return certs
}

// PublicPEM returns the public key in PEM.
func (ca *KeyPair) PublicPEM() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(ca.Key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// issue completes and signs a certificate. Without an authority the certificate is self-signed.
func issue(ca *KeyPair, template x509.Certificate, now time.Time, validity time.Duration) (*KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore = now.Add(-backdated)
	template.NotAfter = now.Add(validity)
	parent, signer := &template, key
	if ca != nil {
		parent, signer = ca.Cert, ca.Key
		if template.NotAfter.After(ca.Cert.NotAfter) {
			template.NotAfter = ca.Cert.NotAfter
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate for %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the new certificate: %w", err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return &KeyPair{
		Key:     key,
		Cert:    cert,
		CertPEM: EncodeCertificate(cert),
		KeyPEM:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}, nil
}
