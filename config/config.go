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

// Package config holds manifests of the operator for programs that compare with them
// what a cluster has.
package config

import "embed"

// CRDs are the kinds of this build, one file each.
//
//go:embed crd/bases/*.yaml
var CRDs embed.FS

// Roles are the roles of this build, as rbac/kustomization.yaml lists them: role.yaml
// has what the manager needs. Names lack the prefix of the installation.
//
//go:embed rbac/*.yaml
var Roles embed.FS
