//go:build tools

// The version of versitygw that s3_server.py builds.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
